"""The wiring of an invalidator process, and the verbs with which an operator asks and changes it."""
