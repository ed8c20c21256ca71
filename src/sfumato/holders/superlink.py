"""The coordinator's end of the network: a SuperLink that only the holders of a study can talk to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import InvalidInput
from sfumato.holders.flower import bytes_of, flower_key, part_with_bytes, record_of, require_flower

if TYPE_CHECKING:
    from fastapi import FastAPI
    from flwr.app import Message
    from flwr.server.superlink.linkstate import InMemoryLinkState

_LONG_POLL = 5.0  # seconds that a node's question for messages stays open
_BEAT = 5.0
_STARTING = 30.0
_DAY = 86400.0  # a letter is taken back long before


class SuperLink:
    """Sends letters to holders by their places, and collects the answers that come in time.

    A node is let in if its key is in the signature that its holder put under the study; all others are turned
    away before anything that they send is read. A letter is delivered once. Answers of more than `largest`
    bytes are not read.
    """

    def __init__(self, nodes: Mapping[int, str], *, largest: int = 2**28) -> None:
        require_flower()
        self._keys, self._largest = [flower_key(line) for line in nodes.values()], largest
        self._state = _waiting_state()
        self._run = _started_run(self._state)
        self._nodes = {place: _registered(self._state, line) for place, line in nodes.items()}
        self._closed = threading.Event()

    @contextmanager
    def serving(self, host: str, port: int, *, certificate: Path, key: Path) -> Iterator[int]:
        """Answer nodes over TLS within the block; yields the port, of which 0 lets the system choose one."""
        import uvicorn

        for place in (certificate, key):
            if not place.is_file():
                raise InvalidInput(f"expected a file at {place}, got none; see: sfumato holders certificate")
        listener = _listener(host, port)
        server = uvicorn.Server(
            uvicorn.Config(
                self._guarded(),
                ssl_certfile=str(certificate),
                ssl_keyfile=str(key),
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            _wait_for(lambda: server.started or not thread.is_alive())
            if not server.started:
                raise InvalidInput(f"expected a certificate and its key in {certificate} and {key}, got others")
            yield listener.getsockname()[1]
        finally:
            self._closed.set()
            self._state.stop_waiting()
            server.should_exit = True
            thread.join()
            listener.close()

    def _guarded(self) -> Any:
        from sfumato.holders.gate import Gate

        return Gate(_fleet_app(self._state), known=self._keys, largest=self._largest)

    def ask(self, letters: Mapping[int, bytes], *, patience: float) -> dict[int, bytes]:
        """The answers that came within `patience` seconds; who is late is not waited for."""
        sent = {place: self._send(place, letter) for place, letter in letters.items()}
        asked = {message: place for place, message in sent.items() if message is not None}
        answers: dict[int, bytes] = {}
        ends = time.monotonic() + patience
        while asked and time.monotonic() < ends:
            for message_id, answer in self._state.complete_answers(set(asked), self._run):
                place = asked.pop(message_id)
                if answer is not None:
                    answers[place] = answer
            if asked:
                self._state.wait_for_news(min(0.2, max(0.0, ends - time.monotonic())))
        self._state.forget(set(asked))
        return answers

    def _send(self, place: int, letter: bytes) -> str | None:
        """The id of the message; None if the holder's node was never there."""
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        message = self._message(place, letter)
        session = self._state.start_session(self._run)
        contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        with self._state.lock:  # a node sees the message when it is there with all its parts
            stored, missing = self._state.store_message_and_object_tree(message, tree, session)
            for name in missing:
                self._state.store_object(self._run, session, name, contents[name])
        self._state.tell_news()
        return message.metadata.message_id if stored else None

    def _message(self, place: int, letter: bytes) -> Message:
        from flwr.app.message import make_message
        from flwr.app.metadata import Metadata
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.supercore.date import now

        metadata = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=self._nodes[place],
            reply_to_message_id="",
            group_id="",
            created_at=now().timestamp(),
            ttl=_DAY,
            message_type="query",
        )
        message = make_message(metadata, content=record_of(letter))
        metadata.__dict__["_message_id"] = message.object_id
        return message

    def _beat(self) -> None:
        """A run of which Flower sees no sign of life ends."""
        while not self._closed.wait(_BEAT):
            self._state.acknowledge_task_heartbeat(_task_of(self._state, self._run))


class _News:
    """Lets threads wait until something has changed."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._closed = False

    def wait_for_news(self, seconds: float) -> None:
        with self._news:
            self._news.wait(max(0.0, min(seconds, 0.5)))

    def tell_news(self) -> None:
        with self._news:
            self._news.notify_all()

    def stop_waiting(self) -> None:
        self._closed = True
        self.tell_news()


class _Answers:
    """Of Flower's state: which answers have come, and what is left of messages that are done with."""

    def __init__(self) -> None:
        self._arriving: dict[str, Message] = {}

    def complete_answers(self: Any, asked: set[str], run: int) -> list[tuple[str, bytes | None]]:
        """What answers to which messages say, once it has arrived; nothing if it cannot be read."""
        for message in self.get_message_res(set(asked), run):  # a copy: Flower takes out what it finds
            self._arriving[message.metadata.message_id] = message
        whole: dict[str, bytes | None] = {}
        for name, message in list(self._arriving.items()):
            arrived, content = (True, None) if message.has_error() else self._content(name)
            if arrived:
                del self._arriving[name]
                whole[message.metadata.reply_to_message_id] = content
                self.done_with(name)
        self.delete_messages(set(whole))
        for name in whole:
            self.done_with(name)
        return [(name, content) for name, content in whole.items() if name in asked]

    def _content(self: Any, name: str) -> tuple[bool, bytes | None]:
        """Whether the record of an answer is here, and what it says."""
        from flwr.supercore.object_store import NoObjectInStoreError

        try:
            part = part_with_bytes(self.object_store.get_object_tree(name))
            content = self.object_store.get(part)
            return bool(content), bytes_of(part, content) if content else None
        except NoObjectInStoreError:
            return False, None
        except InvalidInput:
            return True, None

    def forget(self: Any, asked: set[str]) -> None:
        """Wait no longer for answers to these messages; what has come of them is dropped."""
        for name, message in list(self._arriving.items()):
            if message.metadata.reply_to_message_id in asked:
                del self._arriving[name]
                self.done_with(name)
        self.delete_messages(asked)
        for name in asked:
            self.done_with(name)

    def done_with(self: Any, name: str) -> None:
        """Forget the parts of a message, also those that were never sent."""
        with self._lock_object_push_sessions:
            session = self._object_push_session_by_root.get(name)
            if session is not None:
                self._cleanup_push_session(session, cleanup_messages=False)
        self.object_store.delete(name)


def _waiting_state() -> Any:
    """Flower's state in memory, in which nodes and coordinator wait for messages and do not poll."""
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    class Waiting(_News, _Answers, InMemoryLinkState):
        def __init__(self) -> None:
            _News.__init__(self)
            _Answers.__init__(self)
            InMemoryLinkState.__init__(
                self,
                NoOpFederationManager(simulation=False),
                ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME).store(),
            )

        def get_message_ins(
            self, node_id: int, limit: int | None, *, run_id: int | None = None
        ) -> list[Message]:
            ends = time.monotonic() + _LONG_POLL
            while True:
                found = super().get_message_ins(node_id, limit, run_id=run_id)
                if found or self._closed or time.monotonic() >= ends:
                    return found
                self.wait_for_news(ends - time.monotonic())

        def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
            """A node that comes back will not answer what it was given before: nobody waits for that."""
            with self.lock:
                self.delete_messages(_given_to(node_id, self))
            return super().activate_node(node_id, heartbeat_interval)

        def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
            stored = super().store_object(run_id, session_id, object_id, object_content)
            self.tell_news()
            return stored

    return Waiting()


def _given_to(node_id: int, state: Any) -> set[str]:
    """Messages that a node was handed and has not answered."""
    answered = state.message_ins_id_to_message_res_id
    return {
        name
        for name, message in state.message_ins_store.items()
        if message.metadata.dst_node_id == node_id and message.metadata.delivered_at and name not in answered
    }


def _started_run(state: InMemoryLinkState) -> int:
    from flwr.common.constant import NOOP_FLWR_AID
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

    run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
    task = _task_of(state, run)
    state.claim_task(task)
    state.activate_task(task)
    return run


def _task_of(state: InMemoryLinkState, run: int) -> int:
    task = state.get_run_info(run_ids=[run])[0].primary_task_id
    assert task is not None
    return task


def _registered(state: InMemoryLinkState, line: str) -> int:
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

    return state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, flower_key(line), 0)


def _fleet_app(state: InMemoryLinkState) -> FastAPI:
    """Of a SuperLink's interfaces the one for nodes; a node that is not registered has no place in it."""
    from fastapi import FastAPI
    from flwr.supercore.error import http_error_translator
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
    from flwr.superlink.routers.fleet.router import router
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware

    from sfumato.holders.gate import OwnAnswers

    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(OwnAnswers),
        ],
    )
    app.state.linkstate_factory = _Ready(state)
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return app


class _Ready:
    """Hands out the one state, as Flower's factories do."""

    def __init__(self, state: InMemoryLinkState) -> None:
        self._state = state

    def state(self) -> InMemoryLinkState:
        return self._state


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise InvalidInput(
            f"expected a free port and an address of this machine, got {host}:{port}; choose another with "
            "--address"
        ) from error


def _wait_for(ready: Any) -> None:
    ends = time.monotonic() + _STARTING
    while not ready() and time.monotonic() < ends:
        time.sleep(0.02)
