"""The first sentences: what they claim, and that they claim no more than the seeds bear."""

from __future__ import annotations

from dataclasses import replace

from gslb.report.figures import worlds
from gslb.report.headline import headline
from gslb.sim.result import RunResult
from gslb.sim.setting import Setting
from tests.report.built import run, setting


def told(results: list[RunResult], world: Setting | None = None) -> list[str]:
    return headline(worlds(results, [world or setting()])[0])


def scored(policy: str, shares: list[float]) -> list[RunResult]:
    """Runs of 1000 requests each, of which that share was good."""
    results = []
    for seed, share in enumerate(shares, start=1):
        result = run(policy, seed, requests=0)
        result.total.offered = result.total.completed = 1000
        result.total.good = round(1000 * share)
        results.append(result)
    return results


def test_a_sure_winner() -> None:
    verdict = told(scored("ttft", [0.98, 0.97, 0.99]) + scored("nearest", [0.90, 0.89, 0.91]))[0]
    assert verdict == (
        "ttft won: 98.00 % of the requests got their first token within the budget, 8.00 points more than the "
        "next best, nearest (95 % interval +8.00 to +8.00, 3 equal seeds)."
    )


def test_no_winner_by_chance() -> None:
    verdict, *more = told(scored("ttft", [0.97, 0.95, 0.97]) + scored("gorgo", [0.95, 0.98, 0.97]))
    assert verdict.startswith("No clear winner among gorgo and ttft: gorgo is first, 96.67 %")
    assert "its lead over ttft is 0.33 points" in verdict
    assert more[0].startswith("ttft itself reached 96.33 %: −0.33 points (95 % interval")


def test_one_seed_claims_nothing() -> None:
    verdict = told(scored("ttft", [0.98]) + scored("nearest", [0.9]))[0]
    assert verdict.startswith("ttft came first: 98.00 %")
    assert verdict.endswith("One seed cannot tell whether that is chance.")


def test_one_policy_has_nothing_to_beat() -> None:
    assert told(scored("ttft", [0.98, 0.97]))[0].endswith("No other policy finished a run to compare it with.")


def test_unequal_seeds_are_not_compared() -> None:
    others = scored("nearest", [0.9, 0.9])
    for result in others:
        result.seed += 10
    assert told(scored("ttft", [0.98, 0.97]) + others)[0].endswith("No seed was finished by both.")


def test_the_oracle_is_a_bound() -> None:
    sentences = told(scored("oracle", [1.0, 1.0]) + scored("ttft", [0.98, 0.98]) + scored("nearest", [0.9, 0.9]))
    assert sentences[0].startswith("ttft won")
    assert sentences[1].endswith("reached 100.00 %: ttft got 98.0 % of that.")


def test_whose_clients_are_worst_off() -> None:
    results = scored("ttft", [0.98, 0.98])
    for result in results:
        result.by_home["us-east"].offered, result.by_home["us-east"].good = 500, 400
        result.by_home["eu-central"].offered, result.by_home["eu-central"].good = 500, 500
    assert "Worst off under ttft are clients at home in us-east: 80.00 %." in told(results)


def test_what_must_be_known_beside_it() -> None:
    results = scored("ttft", [0.98, 0.98]) + scored("nearest", [0.9])
    results[1].is_partial = results[2].is_partial = True
    results[0].total.unfinished = 7
    world = replace(setting(is_synthetic=True), warm_up_s=20.0)
    text = " ".join(told(results, world))
    assert "Synthetic geography" in text
    assert "nearest finished no run" in text
    assert "1 unfinished run was left out" in text
    assert "7 of 2,000 requests were still under way" in text
    assert "first 20 s" in text


def test_what_was_interrupted_does_not_lead() -> None:
    results = scored("near_room", [1.0]) + scored("ttft", [0.98, 0.98]) + scored("gorgo", [0.9, 0.9])
    results[0].is_partial = True
    assert told(results)[0].startswith("ttft won: 98.00 %")
    for result in results:
        result.is_partial = True
    assert told(results)[0].startswith("near_room is ahead: 100.00 %")


def test_nothing_ended() -> None:
    assert told([run(requests=0)])[0] == "No request came to an end: there is nothing to compare."
    assert told([run("oracle")])[0] == "No request came to an end: there is nothing to compare."
