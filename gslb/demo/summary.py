"""What the demo showed: as one JSON object, and in words made from that object alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gslb.demo.show import Result
from gslb.demo.tally import Outcome, Tally
from gslb.demo.world import COUNTRIES, SITES, nearest, rtt_ms


def as_document(result: Result) -> dict[str, Any]:
    """The JSON object that `gslb demo --json` prints. Times as their names say; None where nothing happened.

    `requests` = completed + failed + fenced + aborted + cut_streams. `served` counts requests with content.
    """
    tally, outage = result.tally, result.tally.outage
    return {
        "duration_s": round(result.duration_s, 1),
        "stopped_early": result.was_stopped,
        "requests": tally.requests,
        "completed": tally.outcomes[Outcome.OK],
        "failed": tally.outcomes[Outcome.FAILED],
        "spilled": tally.spilled,
        "fenced": tally.outcomes[Outcome.FENCED],
        "aborted": tally.outcomes[Outcome.ABORTED],
        "cut_streams": tally.outcomes[Outcome.CUT],
        "ttft_p50_ms": _rounded(tally.ttft_ms(0.5)),
        "ttft_p99_ms": _rounded(tally.ttft_ms(0.99)),
        "by_region": {site.name: _by_region(tally, site.name) for site in SITES},
        "by_country": {country.code: _by_country(tally, country.code) for country in COUNTRIES},
        "spillover": [
            {"home": home, "served": served, "reason": reason, "requests": count}
            for (home, served, reason), count in sorted(result.spillover.items())
        ],
        "outage": {
            "region": outage.region,
            "started_s": _rounded(outage.started_s, 3),
            "ended_s": _rounded(outage.ended_s, 3),
            "failed_before_first_byte": outage.failed_before_first_byte,
            "cut_streams": outage.cut_streams,
            "recovered_s": _rounded(outage.recovered_s, 3),
        },
        "problems": dict(tally.problems),
    }


def _by_region(tally: Tally, region: str) -> dict[str, int]:
    served, spilled_in = tally.served_by(region)
    home = sum(tally.asked[code] for code, name in tally.homes.items() if name == region)
    return {"served": served, "home": home, "spilled": spilled_in}


def _by_country(tally: Tally, code: str) -> dict[str, Any]:
    home, near = tally.homes[code], nearest(code)
    served_by = {site.name: tally.flows[code, site.name] for site in SITES}
    served = sum(served_by.values())
    return {
        "requests": tally.asked[code],
        "served": served,
        "served_by": served_by,
        "home": home,
        "nearest_by_rtt": near.name,
        "is_nearest": home == near.name,
        "rtt_ms": round(rtt_ms(code, near), 1),
        "spilled": served - served_by.get(home, 0),
    }


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


# --- in words -------------------------------------------------------------------------------------------


def in_words(told: Mapping[str, Any]) -> list[str]:
    """The story of a document for somebody new to all this: a few paragraphs, one string each."""
    if not told["requests"]:
        return ["Nothing was asked yet."]
    paragraphs = (_what_ran(told), _homes(told), _spilled(told), _outage(told), _others(told))
    return [paragraph for paragraph in paragraphs if paragraph]


def _what_ran(told: Mapping[str, Any]) -> str:
    asked = [entry for entry in told["by_country"].values() if entry["requests"]]
    failed = told["failed"]
    end = "none was lost before its answer began" if not failed else f"{_count(failed, 'request')} FAILED"
    return (
        f"In {told['duration_s']:g} seconds, people in {len(asked)} countries sent "
        f"{_count(told['requests'], 'request')} to one gslb, which stands in front of {len(SITES)} regions; {end}."
    )


def _homes(told: Mapping[str, Any]) -> str:
    far = [code for code, entry in told["by_country"].items() if not entry["is_nearest"]]
    if far:
        return f"NOT every country's home is its nearest region: {', '.join(far)}."
    return (
        "Each country's home is the region it reaches soonest. Half of all answers began within "
        f"{_ms(told['ttft_p50_ms'])}, 99 of 100 within {_ms(told['ttft_p99_ms'])}, the way there and "
        "back included."
    )


def _spilled(told: Mapping[str, Any]) -> str:
    full = [entry for entry in told["spillover"] if entry["reason"] == "full"]
    if not full:
        return ""
    by_home: dict[str, dict[str, int]] = {}
    for entry in full:
        served = by_home.setdefault(entry["home"], {})
        served[entry["served"]] = served.get(entry["served"], 0) + entry["requests"]
    home = max(by_home, key=lambda name: sum(by_home[name].values()))
    return (
        f"When {home.capitalize()} had no free slot, {_count(sum(by_home[home].values()), 'request')} of its "
        f"countries did not queue there but went on to {_places(by_home[home])}: farther, and still sooner."
    )


def _outage(told: Mapping[str, Any]) -> str:
    outage = told["outage"]
    if outage["started_s"] is None:
        return ""
    title = outage["region"].capitalize()
    moved: dict[str, int] = {}
    for entry in told["spillover"]:
        if entry["home"] == outage["region"] and entry["reason"] in ("unhealthy", "failover"):
            moved[entry["served"]] = moved.get(entry["served"], 0) + entry["requests"]
    text = f"Then {title} died. "
    if outage["cut_streams"]:
        text += (
            f"{_count(outage['cut_streams'], 'answer')} that had begun there broke off, and the clients were told "
            "so: half an answer cannot be finished elsewhere. "
        )
    if moved:
        text += f"{_count(sum(moved.values()), 'request')} went to {_places(moved)} instead. "
    lost = outage["failed_before_first_byte"]
    text += f"{_count(lost, 'request')} FAILED. " if lost else "No other request was lost. "
    if outage["recovered_s"] is not None:
        text += f"{title} answered again {outage['recovered_s']:.1f} s after it came back."
    return text.strip()


def _others(told: Mapping[str, Any]) -> str:
    sentences = []
    if told["fenced"]:
        sentences.append(
            f"{_count(told['fenced'], 'request')} from the EU insisted on a region outside it and "
            "got a refusal: the residency rule is a fence that nothing crosses."
        )
    if told["aborted"]:
        sentences.append(
            f"{_count(told['aborted'], 'client')} hung up in the middle of an answer, which freed a GPU's "
            "slot at once."
        )
    return " ".join(sentences)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _places(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return " and ".join(f"{name.capitalize()} ({count})" for name, count in ordered)


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} ms"
