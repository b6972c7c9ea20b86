"""A source of transactions that follows the binary log of MySQL or MariaDB.

``source`` receives and ``dump`` asks the server for the log. ``decoder`` makes transactions of events, with
``fasttrack`` around it where keys are wanted. ``keys`` makes cache keys of row events, ``rows`` makes whole rows,
``wire`` knows the bytes. ``seek`` finds the place of a time in the log.
"""
