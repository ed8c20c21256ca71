"""A desk from Python: questions in SQL, answers as data frames."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.query import Answer, ExpectedError, QueryRefused

_PATIENCE = 600.0


class DeskClient:
    """A desk that answers questions under an allocation. `sfumato.connect` makes one.

    Args:
        url: The address of the desk.
        token: The token that an officer gave.
        table: The table to ask where a desk has several.

    ```python
    desk = DeskClient("https://desk.example.org", token="sfd_…")
    ```
    """

    def __init__(self, url: str, *, token: str, table: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise InvalidInput(
                f"expected an https:// address, got {url!r}; a token must not travel in the clear"
            )
        self._url, self._token, self._table = url.rstrip("/"), token, table

    def query(
        self, sql: str, *, epsilon: float, delta: float | None = None, table: str | None = None
    ) -> Answer:
        """Ask a question, for a share of the allocation.

        Args:
            sql: The question.
            epsilon: The ε of the answer.
            delta: Its δ, where groups are not declared.
            table: The table, where the desk has several.

        Returns:
            The noisy rows; `.to_pandas()` gives a data frame with their intervals.

        Raises:
            BudgetExceeded: If the allocation has no room. Nothing is spent.
            QueryRefused: If it cannot be answered privately. Nothing is spent.
        """
        return Answer.from_json(self._post("query", table, sql=sql, epsilon=epsilon, delta=delta))

    def expect(
        self, sql: str, *, epsilon: float, delta: float | None = None, table: str | None = None
    ) -> tuple[ExpectedError, ...]:
        """Return the expected errors of an answer, one for each column, as for `query`. Nothing is spent."""
        found = self._post("expect", table, sql=sql, epsilon=epsilon, delta=delta)["expected_errors"]
        return tuple(ExpectedError(in_units_of=one.pop("unit"), **one) for one in found)

    def tables(self) -> list[str]:
        """Return the names of the tables of the desk."""
        found: list[str] = self._send("GET", "/api/v1/tables")
        return found

    @property
    def epsilon_left(self) -> dict[str, float]:
        """The ε left of each allocation, by its purpose."""
        return {one["purpose"]: one["epsilon_left"] for one in self._send("GET", "/api/v1/allocations")}

    def _post(self, action: str, table: str | None, **asked: Any) -> dict[str, Any]:
        name = urllib.parse.quote(table or self._only_table(), safe="")
        body = {key: value for key, value in asked.items() if value is not None}
        found: dict[str, Any] = self._send("POST", f"/api/v1/tables/{name}/{action}", body)
        return found

    def _only_table(self) -> str:
        if self._table is None:
            names = self.tables()
            if len(names) != 1:
                raise InvalidInput(f"expected table= to be one of {', '.join(names)}")
            self._table = names[0]
        return self._table

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except urllib.error.URLError as error:
            raise SfumatoError(f"the desk at {self._url} cannot be reached: {error.reason}") from None


def _refusal(error: urllib.error.HTTPError) -> SfumatoError:
    try:
        body: dict[str, Any] = json.load(error)
    except ValueError:
        body = {}
    sentence = str(body.get("error", f"the desk answered with status {error.code}"))
    if error.code == 409:
        left = float(body.get("epsilon_left") or 0.0)
        return BudgetExceeded(sentence, epsilon_spent=float("nan"), epsilon_left=left)
    if error.code == 422:
        return QueryRefused(sentence, nearest=body.get("nearest") or "")
    return Refused(sentence) if error.code in (401, 403, 404) else SfumatoError(sentence)


def connect(url: str, *, token: str, table: str | None = None) -> DeskClient:
    """Connect to a desk, to ask it questions.

    Args:
        url: The address of the desk.
        token: The token that an officer gave.
        table: The table to ask where a desk has several.

    Returns:
        The desk: `desk.query("SELECT …", epsilon=0.1).to_pandas()`.

    ```python
    desk = sfumato.connect("https://desk.example.org", token="sfd_…")
    frame = desk.query("SELECT city, AVG(age) FROM people GROUP BY city", epsilon=0.1).to_pandas()
    ```
    """
    return DeskClient(url, token=token, table=table)
