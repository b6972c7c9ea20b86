"""Connections to databases: the pools of this library and of an application, and what is sent on one connection."""
