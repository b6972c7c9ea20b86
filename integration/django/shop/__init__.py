"""An application of Django, for the tests."""
