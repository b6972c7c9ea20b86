"""Stages and limits of a read: loaders, shared flights, copies in the process, shadow mode, refusals."""
