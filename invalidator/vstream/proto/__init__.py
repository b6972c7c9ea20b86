"""The messages of vtgate's VStream: ``vitess.proto``, and what protoc makes of it (vitess_pb2.py, vitess_pb2.pyi).

Only the fields that this project sends or reads, under the numbers that Vitess publishes. After a change of it
``python -m tests.unit.invalidator.vstream.test_proto`` makes the Python again (grpcio-tools is in the group release).
"""
