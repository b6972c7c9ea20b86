"""The vocabulary and the algorithm that invalidator, appclient and spark share.

Where to begin: ``algorithm.rule`` (may this be stored, may this be served), then ``algorithm.read``,
``algorithm.invalidate``, ``algorithm.apply`` and ``algorithm.restore``. docs/concepts.md has the idea,
docs/algorithm.md each procedure, and docs/concepts.md each word.

Folders, each of which imports only those below it:

* ``nodes``, ``database``, ``history``: the only folders with sockets, threads, or packages beyond the standard
  library;
* ``values``: the bytes and the JSON of values (the bytes by msgspec);
* ``objects``: the configured objects, and the keys that a row change concerns;
* ``algorithm``: the procedures, without I/O;
* ``config``, ``stream``: freshness.toml; the transactions that a source delivers;
* ``keys``, ``position``: the name of a row in the cache; what a server has executed.

Marks in docstrings, comments and messages:

* F1, F2, …: a way in which such a cache goes wrong, by its number in docs/failure-modes.md;
* I1 to I8: an invariant, by its number in docs/algorithm.md;
* ADR 0001, …: a decision with the schedule that fails without it, in docs/adr/;
* L: how long a node record lives unless it is renewed, ``cache.lease_seconds``.
"""

__version__ = "0.1.0"
