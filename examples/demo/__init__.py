"""`make demo`: four ways to keep a cache fresh, side by side, on one workload and one lagging replica.

    delete_after_write   the writer deletes the key after its commit (what people do today)
    generation_fence     the writer also raises a generation, without which a slow reader stores nothing
    delete_from_stream   a reader of the primary's binlog deletes the key (Debezium, Maxwell and their like)
    event_tokens         this project: the invalidator and ``appclient``

All four see the same writes; every read is made through all four, on the same two memcached nodes, in a
namespace of each, and reads what it misses from the same replica. The replica's lag is the only cause of what
goes wrong: no strategy sleeps, and none is treated differently. ``run`` ties it together; ``workload`` says who
reads and writes what, ``strategy`` what the four do, ``measurement`` and ``verdict`` how they are judged.
"""
