"""The rules of a right set-up, each in one place: what `invalidator check` finds, and a start refuses."""
