"""The schemas that the service sent last to its consumers, by id: a bounded number, in memory.

Written by the threads of ``invalidator.http.consumers``, read by its route.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from freshness.stream.lines import SchemaLine

SCHEMAS_MAX: Final = 4096


class SchemaBook:
    def __init__(self, schemas_max: int = SCHEMAS_MAX) -> None:
        self._lock = threading.Lock()
        self._schemas_max = schemas_max
        self._by_id: OrderedDict[str, SchemaLine] = OrderedDict()

    def note(self, line: SchemaLine) -> None:
        """The one that was sent the longest ago is forgotten if there are too many."""
        with self._lock:
            self._by_id[line.id] = line
            self._by_id.move_to_end(line.id)
            if len(self._by_id) > self._schemas_max:
                self._by_id.popitem(last=False)

    def find(self, schema_id: str) -> SchemaLine | None:
        with self._lock:
            return self._by_id.get(schema_id)
