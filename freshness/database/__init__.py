"""MySQL, MariaDB and vtgate as servers: connections and their errors, the primary's head, the schema, heartbeats."""
