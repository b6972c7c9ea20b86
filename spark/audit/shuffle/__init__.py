"""The survey of a history, the state that the next audit continues, and the context of items in several pieces."""
