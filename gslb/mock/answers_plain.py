"""Answers without tokens of their own: pooling models, the tokenizer, the model list, small facts."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import orjson

from gslb.mock.answers import Framing
from gslb.mock.asks import Ask, messages_prompt, text_prompt
from gslb.mock.settings import MockSettings
from gslb.mock.words import text_of, token_count, token_ids

EMBEDDING_SIZE = 8


def pooling(ask: Ask, framing: Framing) -> bytes:
    """The body for an embeddings, score or rerank request: deterministic numbers in 0..1 from its texts."""
    total = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    if ask.api == "rerank":
        return _rerank(ask, framing, total)
    if ask.api == "score":
        pairs = _score_pairs(ask.document["text_1"], ask.document["text_2"])
        data = [
            {"index": index, "object": "score", "score": _fraction(f"{one}\n{other}")}
            for index, (one, other) in enumerate(pairs)
        ]
        prefix = "score"
    else:
        data = [
            {"index": index, "object": "embedding", "embedding": _vector(text)}
            for index, text in enumerate(_embedding_inputs(ask.document["input"]))
        ]
        prefix = "embd"
    document = {
        "id": f"{prefix}-{framing.request_id}",
        "object": "list",
        "created": framing.created_s,
        "model": ask.model,
        "data": data,
        "usage": {**total, "completion_tokens": 0, "prompt_tokens_details": None},
    }
    return orjson.dumps(document)


def _rerank(ask: Ask, framing: Framing, total: dict[str, int]) -> bytes:
    texts = [entry.get("text", "") if isinstance(entry, dict) else entry for entry in ask.document["documents"]]
    results = [
        {
            "index": index,
            "document": {"text": str(text), "multi_modal": None},
            "relevance_score": _fraction(f"{ask.document['query']}\n{text}"),
        }
        for index, text in enumerate(texts)
    ]
    results.sort(key=lambda result: (-float(str(result["relevance_score"])), int(str(result["index"]))))
    top_n = ask.document.get("top_n")
    if isinstance(top_n, int) and top_n > 0:
        results = results[:top_n]
    return orjson.dumps(
        {"id": f"rerank-{framing.request_id}", "model": ask.model, "usage": total, "results": results}
    )


def _score_pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    ones = one if isinstance(one, list) else [one]
    others = other if isinstance(other, list) else [other]
    if len(ones) == 1:
        ones = ones * len(others)
    return list(zip(ones, others, strict=False))


def _embedding_inputs(asked: Any) -> list[str]:
    if isinstance(asked, list) and not all(isinstance(item, int) for item in asked):
        return [str(item) for item in asked]
    return [str(asked)]


def _fraction(text: str, salt: int = 0) -> float:
    return round(crc32(text.encode(), salt) / 0xFFFFFFFF, 6)


def _vector(text: str) -> list[float]:
    return [round(2 * _fraction(text, salt) - 1, 6) for salt in range(1, EMBEDDING_SIZE + 1)]


def tokenize(document: dict[str, Any], settings: MockSettings) -> bytes:
    """`/tokenize` of a prompt or of messages. Raises Refusal for neither."""
    has_messages = "messages" in document
    ids = token_ids(messages_prompt(document["messages"]) if has_messages else text_prompt(document.get("prompt")))
    return orjson.dumps(
        {"count": len(ids), "max_model_len": settings.max_model_len, "tokens": ids, "token_strs": None}
    )


def detokenize(document: dict[str, Any]) -> bytes:
    """`/detokenize`: the text of the ids that `tokenize` made."""
    tokens = document.get("tokens") or []
    return orjson.dumps({"prompt": text_of([token for token in tokens if isinstance(token, int)])})


def count_tokens(document: dict[str, Any]) -> bytes:
    """`/v1/messages/count_tokens`."""
    return orjson.dumps({"input_tokens": token_count(messages_prompt(document.get("messages")))})


def models(settings: MockSettings, created_s: int) -> bytes:
    """`/v1/models`: the base under each of its names, then the adapters with their parent."""
    root = settings.models[0]
    cards = [_model_card(name, root, None, settings.max_model_len, created_s) for name in settings.models]
    cards += [_model_card(name, name, parent, None, created_s) for name, parent in settings.loras.items()]
    return orjson.dumps({"object": "list", "data": cards})


def _model_card(
    name: str, root: str, parent: str | None, max_model_len: int | None, created_s: int
) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{crc32(name.encode()):08x}{created_s:08x}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def orca_header(format_name: str, waiting: int, kv_usage: float) -> tuple[bytes, bytes] | None:
    """The `endpoint-load-metrics` header for a request that asked with `format_name`; None for others."""
    wanted = format_name.strip().upper()
    if wanted == "JSON":
        value = (
            f'JSON {{"named_metrics": {{"num_requests_waiting": {float(waiting)}, '
            f'"kv_cache_usage_perc": {float(kv_usage)}}}}}'
        )
    elif wanted == "TEXT":
        value = (
            f"TEXT named_metrics.num_requests_waiting={float(waiting)}, "
            f"named_metrics.kv_cache_usage_perc={float(kv_usage)}"
        )
    else:
        return None
    return b"endpoint-load-metrics", value.encode()
