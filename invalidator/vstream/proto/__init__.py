"""The messages of vtgate's VStream: ``vitess.proto``, and what protoc makes of it (vitess_pb2.py, vitess_pb2.pyi).

Only the fields that this project sends or reads, under the numbers that Vitess publishes. To make the Python
again after a change of the .proto (grpcio-tools is in the group release): ``python -m invalidator.vstream.proto``.
"""
