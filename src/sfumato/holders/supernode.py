"""A holder's end of the network: a SuperNode that takes one letter at a time, and answers it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import InvalidInput, Refused
from sfumato.holders.flower import bytes_of, node_key, part_with_bytes, record_of, require_flower

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supernode.fleet_http_client import FleetHttpClient

    from sfumato.ledger.signing import PrivateKey

_LARGEST_PAUSE = 5.0


class SuperNode:
    """Reaches the coordinator's SuperLink; where that is away it is tried again, for as long as `patience`."""

    def __init__(self, address: str, *, key: PrivateKey, certificate: Path | None, patience: float) -> None:
        require_flower()
        self._key, self._patience = node_key(key), patience
        self._client = _client(address, self._key, certificate)
        self._node = 0  # as the SuperLink calls it; 0 before it is asked
        self._current: Message | None = None
        self._stopped = threading.Event()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Show signs of life within the block, and take leave after it."""
        self._connect()
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        try:
            yield
        finally:
            self._stopped.set()
            beats.join()
            self._leave()

    def receive(self) -> bytes:
        """The next letter; waits for it."""
        ends = time.monotonic() + self._patience
        while time.monotonic() < ends:
            found = self._retried(self._pull)
            if found is not None:
                self._current, content = found
                return content
        raise Refused(
            f"expected a message of the coordinator within {self._patience:g} seconds, got none; ask whether "
            "it runs, and start again: what was paid stays paid, and no round is answered twice"
        )

    def reply(self, letter: bytes) -> None:
        """Answer the letter that was received last; one answer each."""
        from flwr.app import Message

        received, self._current = self._current, None
        if received is None:
            raise Refused("expected a letter that was not answered yet, got none")
        answer = Message(record_of(letter), reply_to=received)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        self._retried(lambda: self._push(answer))

    # Flower

    def _connect(self) -> None:
        from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(self._key.public_key()),
            heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL,
        )
        self._node = 0
        self._node = self._retried(lambda: self._client.ActivateNode(request)).node_id

    def _pull(self) -> tuple[Message, bytes] | None:
        """The next message, of which nothing but the head is filled in, and its content."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.message_pb2 import PullObjectRequest

        response = self._client.PullMessages(PullMessagesRequest(node=self._own()))
        if not response.messages_list:
            return None
        message = message_from_proto(response.messages_list[0])
        name = part_with_bytes(response.message_object_trees[0])
        found = self._client.PullObject(
            PullObjectRequest(node=self._own(), run_id=message.metadata.run_id, object_id=name)
        )
        if not found.object_available:
            return None  # the coordinator took it back
        return message, bytes_of(name, found.object_content)

    def _push(self, answer: Message) -> None:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        tree = get_object_tree(answer)
        response = self._client.PushMessages(
            PushMessagesRequest(
                node=self._own(),
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[tree],
            )
        )
        name = part_with_bytes(tree)
        if name in response.objects_to_push:
            self._client.PushObject(
                PushObjectRequest(
                    node=self._own(),
                    run_id=answer.metadata.run_id,
                    session_id=response.session_id,
                    object_id=name,
                    object_content=get_all_nested_objects(answer)[name].deflate(),
                )
            )

    def _own(self) -> Any:
        from flwr.proto.node_pb2 import Node

        return Node(node_id=self._node)

    def _retried(self, call: Callable[[], Any]) -> Any:
        """Try until the SuperLink answers; one that was started anew is told of this node again."""
        import httpx

        ends, pause = time.monotonic() + self._patience, 0.1
        while True:
            try:
                return call()
            except httpx.HTTPStatusError as error:
                unknown = error.response.status_code == httpx.codes.UNAUTHORIZED
                if not unknown and error.response.status_code < 500:
                    raise Refused(
                        f"expected the coordinator to take what this node sends, got status "
                        f"{error.response.status_code}; ask what it says there"
                    ) from error
                problem: Exception = error
                if unknown and self._node:
                    self._connect()
            except httpx.TransportError as error:
                problem = error
            if time.monotonic() > ends:
                raise Refused(
                    f"expected the coordinator to answer within {self._patience:g} seconds, got: {problem}; "
                    "check its address and certificate"
                ) from problem
            self._stopped.wait(pause)
            pause = min(2 * pause, _LARGEST_PAUSE)

    def _beat(self) -> None:
        import httpx
        from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        while not self._stopped.wait(HEARTBEAT_DEFAULT_INTERVAL / 2):
            request = SendNodeHeartbeatRequest(node=self._own(), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            try:
                self._client.SendNodeHeartbeat(request)
            except httpx.HTTPError:
                continue  # the loop of messages finds out, and connects again

    def _leave(self) -> None:
        import httpx
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node))
        self._client.__exit__(None, None, None)


def _client(address: str, key: Any, certificate: Path | None) -> FleetHttpClient:
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    if certificate is not None and not certificate.is_file():
        raise InvalidInput(f"expected the coordinator's certificate at {certificate}, got no file; ask for it")
    return FleetHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=None if certificate is None else str(certificate),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    )
