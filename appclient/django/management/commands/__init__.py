"""Verbs of manage.py, a file for each."""
