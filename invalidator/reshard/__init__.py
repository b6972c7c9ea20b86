"""A reshard as one guided verb: the files of its stages, a look at its servers and nodes, its steps."""
