"""Whether an attacker can tell who was in the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import AttackedNetwork, Membership

_LEAST = 0.001  # the smallest rate that the axes show
_TICKS = [(rate, f"{100 * rate:g}%") for rate in (0.001, 0.01, 0.1, 1.0)]


def _facts(context: Context) -> Facts | None:
    for result in context.of(Membership):
        networks = [network for network in result.networks if network.curve]
        if networks:
            return {"result": result, "rows": _styled(networks), "chart": _both(networks)}
    return None


def _styled(networks: Sequence[AttackedNetwork]) -> list[tuple[AttackedNetwork, str]]:
    return [(network, "ink" if network.epsilon is None else "accent") for network in networks]


def _both(networks: Sequence[AttackedNetwork]) -> Markup:
    return both(lambda room: _roc(room, networks))


def _roc(room: Format, networks: Sequence[AttackedNetwork]) -> Markup:
    x = Axis(
        low=_LEAST,
        high=1,
        log=True,
        ticks=_TICKS,
        label="false positives: named by the attacker, and not in the data",
    )
    y = replace(x, label="true positives: named by the attacker, and in the data")
    chart = Chart(room, x, y)
    chart.line([(_LEAST, _LEAST), (1, 1)], "soft dashed")
    chart.text((_LEAST, _LEAST), "guessing", "soft", move=(30, 0))
    for network, style in _styled(networks):
        chart.line(network.curve, f"{style} strong")
        above = network.epsilon is None
        chart.text(
            network.curve[len(network.curve) // 3],
            network.name,
            style,
            move=(-6, -10) if above else (14, 32),
            anchor="end" if above else "start",
        )
    return chart.svg("Members found against others accused, on log axes, with and without privacy")


SECTION = Section(name="membership", title="Membership inference", kinds=(Membership,), facts=_facts)
