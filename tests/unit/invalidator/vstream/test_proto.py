"""Our messages have the fields of Vitess's public protocol, and the generated code is that of the .proto."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.source import METHOD

CHECKOUT = Path(__file__).resolve().parents[4]
SOURCE = "invalidator/vstream/proto/vitess.proto"


def generate(folder: Path) -> int:
    """Write vitess_pb2.py and vitess_pb2.pyi below ``folder``. The exit code of protoc."""
    from grpc_tools import protoc

    arguments = ["protoc", f"-I{CHECKOUT}", f"--python_out={folder}", f"--pyi_out={folder}"]
    code: int = protoc.main([*arguments, str(CHECKOUT / SOURCE)])
    return code


# Number, name, type; * is repeated. Written from the description of Vitess's protocol, not from our .proto.
PUBLISHED = {
    "VStreamRequest": "2 tablet_type enum; 3 vgtid VGtid; 4 filter Filter; 5 flags VStreamFlags",
    "VStreamResponse": "1 events VEvent*",
    "VStreamFlags": "2 heartbeat_interval uint32; 3 stop_on_reshard bool; 4 cells string;"
    " 10 exclude_keyspace_from_table_name bool; 11 transaction_chunk_size int64",
    "VGtid": "1 shard_gtids ShardGtid*",
    "ShardGtid": "1 keyspace string; 2 shard string; 3 gtid string; 4 table_p_ks TableLastPK*",
    "TableLastPK": "1 table_name string",
    "Filter": "1 rules Rule*; 2 field_event_mode enum",
    "Rule": "1 match string; 2 filter string",
    "VEvent": "1 type enum; 2 timestamp int64; 4 statement string; 5 row_event RowEvent; 6 field_event FieldEvent;"
    " 7 vgtid VGtid; 8 journal Journal; 9 dml string; 20 current_time int64; 22 keyspace string; 23 shard string;"
    " 28 event_gtid string",
    "RowEvent": "1 table_name string; 2 row_changes RowChange*; 3 keyspace string; 4 shard string",
    "RowChange": "1 before Row; 2 after Row; 3 data_columns Bitmap; 4 json_partial_values Bitmap",
    "Bitmap": "1 count int64; 2 cols bytes",
    "FieldEvent": "1 table_name string; 2 fields Field*; 3 keyspace string; 4 shard string;"
    " 25 enum_set_string_values bool",
    "Journal": "1 id int64; 2 migration_type enum; 3 tables string*; 4 local_position string;"
    " 5 shard_gtids ShardGtid*; 6 participants KeyspaceShard*",
    "KeyspaceShard": "1 keyspace string; 2 shard string",
    # query.Type is an enum there and a number here; both are varints.
    "Field": "1 name string; 2 type int32; 7 column_length uint32; 8 charset uint32; 10 flags uint32;"
    " 11 column_type string",
    "Row": "1 lengths sint64*; 2 values bytes",
}
PUBLISHED_ENUMS = {
    "TabletType": "UNKNOWN_TABLET PRIMARY REPLICA RDONLY",
    "VEventType": "UNKNOWN GTID BEGIN COMMIT ROLLBACK DDL INSERT REPLACE UPDATE DELETE SET OTHER ROW FIELD HEARTBEAT"
    " VGTID JOURNAL VERSION LASTPK SAVEPOINT COPY_COMPLETED PREVIOUS_GTIDS ROWS_QUERY",
    "MigrationType": "TABLES SHARDS",
    "FieldEventMode": "ERR_ON_MISMATCH BEST_EFFORT",
}
NAMES = {
    value: name.removeprefix("TYPE_").lower() for name, value in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}


def describe(field: FieldDescriptor) -> str:
    kind = field.message_type.name if field.message_type is not None else NAMES[field.type]
    return f"{field.number} {field.name} {kind}{'*' if field.is_repeated else ''}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_fields_are_those_that_vitess_publishes(name: str) -> None:
    descriptor = pb.DESCRIPTOR.message_types_by_name[name]
    assert "; ".join(map(describe, descriptor.fields)) == PUBLISHED[name]


def test_every_message_and_enum_is_held_against_the_description() -> None:
    assert set(pb.DESCRIPTOR.message_types_by_name) == set(PUBLISHED)
    assert set(pb.DESCRIPTOR.enum_types_by_name) == set(PUBLISHED_ENUMS)


@pytest.mark.parametrize("name", PUBLISHED_ENUMS)
def test_the_numbers_of_the_enums(name: str) -> None:
    values = pb.DESCRIPTOR.enum_types_by_name[name].values_by_number
    assert {number: value.name for number, value in values.items()} == dict(enumerate(PUBLISHED_ENUMS[name].split()))


def test_the_call_is_vitess_s() -> None:
    assert METHOD == "/vtgateservice.Vitess/VStream"


def test_a_response_written_by_hand_is_read() -> None:
    """Bytes by the rules of protobuf: a VGTID event of shard 0, and a row with NULL and an empty text."""
    shard_gtid = b"\x0a\x02ks" + b"\x12\x010" + b"\x1a\x01g"
    vgtid = b"\x0a" + bytes([len(shard_gtid)]) + shard_gtid
    first = b"\x08\x0f" + b"\x3a" + bytes([len(vgtid)]) + vgtid + b"\xb2\x01\x02ks" + b"\xba\x01\x010"
    row = b"\x0a\x03\x01\x00\x04" + b"\x12\x02ab"  # zigzag: -1, 0, 2
    change = b"\x12" + bytes([len(row)]) + row
    row_event = b"\x0a\x01t" + b"\x12" + bytes([len(change)]) + change
    second = b"\x08\x0c" + b"\x2a" + bytes([len(row_event)]) + row_event + b"\xe2\x01\x01x" + b"\xf8\x06\x01"
    data = b"".join(b"\x0a" + bytes([len(event)]) + event for event in (first, second))
    vgtid_event, row_of = pb.VStreamResponse.FromString(data).events
    assert (vgtid_event.type, vgtid_event.keyspace, vgtid_event.shard) == (pb.VGTID, "ks", "0")
    assert [(each.keyspace, each.shard, each.gtid) for each in vgtid_event.vgtid.shard_gtids] == [("ks", "0", "g")]
    assert (row_of.type, row_of.event_gtid) == (pb.ROW, "x")  # and field 111, which nobody knows
    (changed,) = row_of.row_event.row_changes
    assert (list(changed.after.lengths), changed.after.values) == ([-1, 0, 2], b"ab")
    assert not changed.HasField("before")


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    assert generate(tmp_path) == 0
    made = tmp_path / SOURCE.replace(".proto", "_pb2.py")
    # In a process of its own: one process knows a file of messages once.
    script = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('made', sys.argv[1])\n"
        "made = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(made)\n"
        "sys.stdout.buffer.write(made.DESCRIPTOR.serialized_pb)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, made], check=True, capture_output=True)
    assert run.stdout == pb.DESCRIPTOR.serialized_pb, "run: python -m tests.unit.invalidator.vstream.test_proto"
    stub = SOURCE.replace(".proto", "_pb2.pyi")
    assert (tmp_path / stub).read_text() == (CHECKOUT / stub).read_text()


APPLICATION_AND_BINLOG = (
    "appclient",
    "invalidator.process.app",
    "invalidator.cli",
    "invalidator.binlog.source",
    "freshness.config.vtgate_address",
    "freshness.database.vitess",
)


def test_grpc_is_imported_by_nothing_but_the_vstream_source() -> None:
    modules = ", ".join(APPLICATION_AND_BINLOG)
    script = f"import sys, {modules}\nprint([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=CHECKOUT)
    assert run.stdout.strip() == "[]"
    assert importlib.util.find_spec("grpc") is not None, "else this shows nothing"


if __name__ == "__main__":
    sys.exit(generate(CHECKOUT))
