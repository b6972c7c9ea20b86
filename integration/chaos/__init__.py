"""Chaos: applications, invalidators, databases and nodes run, and faults strike them as a seed says: ``make chaos``.

A judge that knows only what clients saw and what writers committed says whether any read was wrong.
"""
