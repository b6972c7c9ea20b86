"""Requests of a web application, each of which reads what its client has committed (docs/read-your-writes.md)."""

from appclient.web.reads import AsyncRequestReads, RequestReads, TokenCookie, find_etag

__all__ = ["AsyncRequestReads", "RequestReads", "TokenCookie", "find_etag"]
