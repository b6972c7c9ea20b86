from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TabletType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_TABLET: _ClassVar[TabletType]
    PRIMARY: _ClassVar[TabletType]
    REPLICA: _ClassVar[TabletType]
    RDONLY: _ClassVar[TabletType]

class FieldEventMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERR_ON_MISMATCH: _ClassVar[FieldEventMode]
    BEST_EFFORT: _ClassVar[FieldEventMode]

class VEventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[VEventType]
    GTID: _ClassVar[VEventType]
    BEGIN: _ClassVar[VEventType]
    COMMIT: _ClassVar[VEventType]
    ROLLBACK: _ClassVar[VEventType]
    DDL: _ClassVar[VEventType]
    INSERT: _ClassVar[VEventType]
    REPLACE: _ClassVar[VEventType]
    UPDATE: _ClassVar[VEventType]
    DELETE: _ClassVar[VEventType]
    SET: _ClassVar[VEventType]
    OTHER: _ClassVar[VEventType]
    ROW: _ClassVar[VEventType]
    FIELD: _ClassVar[VEventType]
    HEARTBEAT: _ClassVar[VEventType]
    VGTID: _ClassVar[VEventType]
    JOURNAL: _ClassVar[VEventType]
    VERSION: _ClassVar[VEventType]
    LASTPK: _ClassVar[VEventType]
    SAVEPOINT: _ClassVar[VEventType]
    COPY_COMPLETED: _ClassVar[VEventType]
    PREVIOUS_GTIDS: _ClassVar[VEventType]
    ROWS_QUERY: _ClassVar[VEventType]

class MigrationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TABLES: _ClassVar[MigrationType]
    SHARDS: _ClassVar[MigrationType]
UNKNOWN_TABLET: TabletType
PRIMARY: TabletType
REPLICA: TabletType
RDONLY: TabletType
ERR_ON_MISMATCH: FieldEventMode
BEST_EFFORT: FieldEventMode
UNKNOWN: VEventType
GTID: VEventType
BEGIN: VEventType
COMMIT: VEventType
ROLLBACK: VEventType
DDL: VEventType
INSERT: VEventType
REPLACE: VEventType
UPDATE: VEventType
DELETE: VEventType
SET: VEventType
OTHER: VEventType
ROW: VEventType
FIELD: VEventType
HEARTBEAT: VEventType
VGTID: VEventType
JOURNAL: VEventType
VERSION: VEventType
LASTPK: VEventType
SAVEPOINT: VEventType
COPY_COMPLETED: VEventType
PREVIOUS_GTIDS: VEventType
ROWS_QUERY: VEventType
TABLES: MigrationType
SHARDS: MigrationType

class VStreamRequest(_message.Message):
    __slots__ = ("tablet_type", "vgtid", "filter", "flags")
    TABLET_TYPE_FIELD_NUMBER: _ClassVar[int]
    VGTID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    tablet_type: TabletType
    vgtid: VGtid
    filter: Filter
    flags: VStreamFlags
    def __init__(self, tablet_type: _Optional[_Union[TabletType, str]] = ..., vgtid: _Optional[_Union[VGtid, _Mapping]] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., flags: _Optional[_Union[VStreamFlags, _Mapping]] = ...) -> None: ...

class VStreamResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[VEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[VEvent, _Mapping]]] = ...) -> None: ...

class VStreamFlags(_message.Message):
    __slots__ = ("heartbeat_interval", "stop_on_reshard", "cells", "exclude_keyspace_from_table_name", "transaction_chunk_size")
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    STOP_ON_RESHARD_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_KEYSPACE_FROM_TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval: int
    stop_on_reshard: bool
    cells: str
    exclude_keyspace_from_table_name: bool
    transaction_chunk_size: int
    def __init__(self, heartbeat_interval: _Optional[int] = ..., stop_on_reshard: _Optional[bool] = ..., cells: _Optional[str] = ..., exclude_keyspace_from_table_name: _Optional[bool] = ..., transaction_chunk_size: _Optional[int] = ...) -> None: ...

class VGtid(_message.Message):
    __slots__ = ("shard_gtids",)
    SHARD_GTIDS_FIELD_NUMBER: _ClassVar[int]
    shard_gtids: _containers.RepeatedCompositeFieldContainer[ShardGtid]
    def __init__(self, shard_gtids: _Optional[_Iterable[_Union[ShardGtid, _Mapping]]] = ...) -> None: ...

class ShardGtid(_message.Message):
    __slots__ = ("keyspace", "shard", "gtid", "table_p_ks")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GTID_FIELD_NUMBER: _ClassVar[int]
    TABLE_P_KS_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    shard: str
    gtid: str
    table_p_ks: _containers.RepeatedCompositeFieldContainer[TableLastPK]
    def __init__(self, keyspace: _Optional[str] = ..., shard: _Optional[str] = ..., gtid: _Optional[str] = ..., table_p_ks: _Optional[_Iterable[_Union[TableLastPK, _Mapping]]] = ...) -> None: ...

class TableLastPK(_message.Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    def __init__(self, table_name: _Optional[str] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("rules", "field_event_mode")
    RULES_FIELD_NUMBER: _ClassVar[int]
    FIELD_EVENT_MODE_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    field_event_mode: FieldEventMode
    def __init__(self, rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., field_event_mode: _Optional[_Union[FieldEventMode, str]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("match", "filter")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    match: str
    filter: str
    def __init__(self, match: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class VEvent(_message.Message):
    __slots__ = ("type", "timestamp", "statement", "row_event", "field_event", "vgtid", "journal", "dml", "current_time", "keyspace", "shard", "event_gtid")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_EVENT_FIELD_NUMBER: _ClassVar[int]
    FIELD_EVENT_FIELD_NUMBER: _ClassVar[int]
    VGTID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    DML_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TIME_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EVENT_GTID_FIELD_NUMBER: _ClassVar[int]
    type: VEventType
    timestamp: int
    statement: str
    row_event: RowEvent
    field_event: FieldEvent
    vgtid: VGtid
    journal: Journal
    dml: str
    current_time: int
    keyspace: str
    shard: str
    event_gtid: str
    def __init__(self, type: _Optional[_Union[VEventType, str]] = ..., timestamp: _Optional[int] = ..., statement: _Optional[str] = ..., row_event: _Optional[_Union[RowEvent, _Mapping]] = ..., field_event: _Optional[_Union[FieldEvent, _Mapping]] = ..., vgtid: _Optional[_Union[VGtid, _Mapping]] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ..., dml: _Optional[str] = ..., current_time: _Optional[int] = ..., keyspace: _Optional[str] = ..., shard: _Optional[str] = ..., event_gtid: _Optional[str] = ...) -> None: ...

class RowEvent(_message.Message):
    __slots__ = ("table_name", "row_changes", "keyspace", "shard")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGES_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    row_changes: _containers.RepeatedCompositeFieldContainer[RowChange]
    keyspace: str
    shard: str
    def __init__(self, table_name: _Optional[str] = ..., row_changes: _Optional[_Iterable[_Union[RowChange, _Mapping]]] = ..., keyspace: _Optional[str] = ..., shard: _Optional[str] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("before", "after", "data_columns", "json_partial_values")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DATA_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    JSON_PARTIAL_VALUES_FIELD_NUMBER: _ClassVar[int]
    before: Row
    after: Row
    data_columns: Bitmap
    json_partial_values: Bitmap
    def __init__(self, before: _Optional[_Union[Row, _Mapping]] = ..., after: _Optional[_Union[Row, _Mapping]] = ..., data_columns: _Optional[_Union[Bitmap, _Mapping]] = ..., json_partial_values: _Optional[_Union[Bitmap, _Mapping]] = ...) -> None: ...

class Bitmap(_message.Message):
    __slots__ = ("count", "cols")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    count: int
    cols: bytes
    def __init__(self, count: _Optional[int] = ..., cols: _Optional[bytes] = ...) -> None: ...

class FieldEvent(_message.Message):
    __slots__ = ("table_name", "fields", "keyspace", "shard", "enum_set_string_values")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ENUM_SET_STRING_VALUES_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    keyspace: str
    shard: str
    enum_set_string_values: bool
    def __init__(self, table_name: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., keyspace: _Optional[str] = ..., shard: _Optional[str] = ..., enum_set_string_values: _Optional[bool] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("id", "migration_type", "tables", "local_position", "shard_gtids", "participants")
    ID_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_POSITION_FIELD_NUMBER: _ClassVar[int]
    SHARD_GTIDS_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    migration_type: MigrationType
    tables: _containers.RepeatedScalarFieldContainer[str]
    local_position: str
    shard_gtids: _containers.RepeatedCompositeFieldContainer[ShardGtid]
    participants: _containers.RepeatedCompositeFieldContainer[KeyspaceShard]
    def __init__(self, id: _Optional[int] = ..., migration_type: _Optional[_Union[MigrationType, str]] = ..., tables: _Optional[_Iterable[str]] = ..., local_position: _Optional[str] = ..., shard_gtids: _Optional[_Iterable[_Union[ShardGtid, _Mapping]]] = ..., participants: _Optional[_Iterable[_Union[KeyspaceShard, _Mapping]]] = ...) -> None: ...

class KeyspaceShard(_message.Message):
    __slots__ = ("keyspace", "shard")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    shard: str
    def __init__(self, keyspace: _Optional[str] = ..., shard: _Optional[str] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "type", "column_length", "charset", "flags", "column_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHARSET_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: int
    column_length: int
    charset: int
    flags: int
    column_type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[int] = ..., column_length: _Optional[int] = ..., charset: _Optional[int] = ..., flags: _Optional[int] = ..., column_type: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("lengths", "values")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ...) -> None: ...
