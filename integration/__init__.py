"""Tests on real servers, and what starts those servers."""
