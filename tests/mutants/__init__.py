"""The production code with one defence taken out, many times, and the tests that must notice: ``make mutants``."""
