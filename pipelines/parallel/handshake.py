"""How two ranks that connect prove to each other that they are of one ring. Pure: takes and returns bytes.

    caller      number of its rank | random bytes        ->
                                                         <-      random bytes | proof          host
                proof                                    ->

A proof is an HMAC-SHA256, under the ring's key, of who proves and of all random bytes: the key itself never travels here, and what was
heard once proves nothing again.
"""

from __future__ import annotations

import hmac
import secrets
import struct

KEY_BYTES = NONCE_BYTES = PROOF_BYTES = 32
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
_RANK = struct.Struct("<I")
HELLO_BYTES = _RANK.size + NONCE_BYTES


class Stranger(Exception):
    """Who is connected does not know the ring's key."""


class Caller:
    """The side of the rank that connects."""

    def __init__(self, key: bytes, *, rank: int, host: int) -> None:
        """Begin a handshake of ``rank`` with the rank ``host``."""
        self.host = host
        self._key, self._rank = key, rank
        self.hello = _RANK.pack(rank) + secrets.token_bytes(NONCE_BYTES)

    def reply(self, answer: bytes) -> bytes:
        """The proof to send on an answer of ANSWER_BYTES. Raises Stranger."""
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"host", self.host, self.hello + nonce)):
            raise Stranger
        return _proof(self._key, b"caller", self._rank, self.hello + nonce)


class Guest:
    """What somebody who has connected has said so far, at the side of the rank that listens."""

    def __init__(self, key: bytes, *, host: int) -> None:
        """Begin a handshake of the rank ``host`` with whoever has connected."""
        self._key, self._host = key, host
        self._said, self._nonce = b"", b""

    @property
    def missing_bytes(self) -> int:
        """Bytes that are to be heard before the next reply; 0 once the handshake is over."""
        return HELLO_BYTES + (PROOF_BYTES if self._nonce else 0) - len(self._said)

    @property
    def rank(self) -> int:
        """The rank that it says it is; proved once the handshake is over."""
        return int(_RANK.unpack_from(self._said)[0])

    def hear(self, data: bytes) -> bytes:
        """Take at most ``missing_bytes``; returns the reply, which may be empty. Raises Stranger."""
        self._said += data
        if self.missing_bytes:
            return b""
        hello, proof = self._said[:HELLO_BYTES], self._said[HELLO_BYTES:]
        if not self._nonce:
            self._nonce = secrets.token_bytes(NONCE_BYTES)
            return self._nonce + _proof(self._key, b"host", self._host, hello + self._nonce)
        if not hmac.compare_digest(proof, _proof(self._key, b"caller", self.rank, hello + self._nonce)):
            raise Stranger
        return b""


def _proof(key: bytes, side: bytes, rank: int, nonces: bytes) -> bytes:
    return hmac.digest(key, side + _RANK.pack(rank) + nonces, "sha256")
