"""From a row event to the keys of cache items: four routes, and when each is taken.

`reader.KeyReader` reads the event's head and finds the table's plan (`plan.TablePlan`) and, by the bitmaps of present
columns, its `plan.Code`. Each event takes the first route that fits:

1. **Uniform stride** (``uniform``). The event has at least `uniform.EVENT_BYTES_MIN` bytes of rows and no partial
   JSON, and all its rows are laid out as its first: the same NULLs, the same lengths. Each key column is then at one
   distance from one row to the next, and one `struct` call reads the keys of all rows; keys that are all numbers
   even become one text (`uniform.NumberReader`). An event whose rows are not alike turns the check off for the next
   `uniform.PAUSE_EVENTS` events.
2. **Compiled plan** (``plan``). One compiled function steps through the rows. A row whose NULL pattern is known takes
   a branch in which all distances up to the next field of variable length are constants.
3. **General walk** (``plan``, in the same function). A row with another NULL pattern takes the branch that looks at
   each NULL bit. The pattern then gets a branch of its own, up to `plan.PATTERNS_MAX` of them.
4. **Whole-row decoding** (``invalidator.binlog.rows``). Rows of the heartbeat table, whose values are wanted. A
   source without definitions decodes all its rows so, and ``freshness.objects.keyfinder`` finds their keys later.

An event that no route can read gives no keys and raises its table: a key is never guessed. All routes give the same
keys, which the tests compare with one another, with whole-row decoding and with the server. In front of them stands
``invalidator.binlog.fasttrack``, which skips the general decoder for transactions of the usual form and calls the
same `plan.Code`.
"""
