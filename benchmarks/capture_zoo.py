"""Every architecture of the installed `transformers`, made small by rule: (name, how to make it, its inputs).

Contract. `candidates()` gives a row for each entry of the library's own tables of models, `built(row)` a model and
inputs. A configuration is made small by what its fields are called (`SMALL`), sub-configurations likewise; where a
model refuses that, one of the rules is left out, and at last only depth, vocabulary and token ids shrink (`DEPTH`).
Inputs are made from the signature of `forward`. Nothing here knows a single architecture (but for what `NEEDED` says
has no default), so a table over it says how far capture carries on programs nobody looked at; a model that cannot be
made or called so is reported as not built, with its error, and is no part of the count.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import configuration_auto, modeling_auto

# A model of more parameters costs more time than it tells.
MOST_PARAMETERS = 40_000_000
VOCABULARY = 128
# Which task a model is made for: the first table that has it.
TASKS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CTC",
    "SPEECH_SEQ_2_SEQ", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION", "TIME_SERIES_PREDICTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "ZERO_SHOT_OBJECT_DETECTION", "MASK_GENERATION", "KEYPOINT_DETECTION",
    "PRETRAINING", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM",
)  # fmt: skip

# What a whole number becomes that is called so; the first row that matches counts.
SMALL: tuple[tuple[str, int], ...] = (
    (r"vocab_size(_or_config_json_file)?$|^codebook_size$|^num_codevectors?$", VOCABULARY),
    (r"(num_)?key_value_heads$|^num_kv_heads$|^n_head_kv$|^num_query_groups$", 2),
    (r"(num_|n_)?(.*_)?heads?$|^n_heads?$|^num_attention_heads$|_num_heads$", 4),
    (r"^(num_|n_)(hidden_|encoder_|decoder_|text_|vision_|speech_)?(layers?|blocks?)$|_layers$|_num_layers$"
     r"|^depth$|^n_layers?$|_n_layers$|^num_.*_layers$", 2),
    (r"num_experts_per_tok$|^moe_topk$|^moe_k$|^top_k$|experts_per_token$|^num_selected_experts$", 2),
    (r"experts$|^moe_num_experts$|^num_local_experts$", 4),
    (r"^(n_group|topk_group|n_groups|first_k_dense_replace)$", 1),
    (r"^(mamba_)?(d_state|state_size|ssm_state_size)$", 8),
    (r"head_dim$|^d_kv$|^v_head_dim$|^qk_nope_head_dim$|^qk_rope_head_dim$|^rotary_dim$|_head_size$|^head_size$", 8),
    (r"(intermediate|inter|ffn|ff|feedforward|feed_forward|inner|mlp|fc).*(_size|_dim|_hidden_size)?$|^d_inner$"
     r"|^hidden_dim$", 64),
    (r"lora_rank$|^.*_rank$|^time_step_rank$", 16),
    (r"^image_size$|^img_size$|^input_size$|_image_size$|^spectrogram_length$", 32),
    (r"patch_size$", 8),
    (r"(hidden_size|embed_dim|embedding_size|embed_size|d_model|n_embd|projection_dim|hidden_dims?|hidden_channels"
     r"|out_channels|^dim$|_dim$|_width$|width$|hidden_features|mask_feature_size|fpn_feature_size|channels"
     r"|_hidden_size)$", 32),
    (r"^(max_position_embeddings|n_positions|max_seq_len|max_source_positions|max_target_positions|seq_length"
     r"|max_sequence_length|n_ctx|max_2d_position_embeddings|max_text_len|sliding_window|local_attention)$", 128),
    (r"^num_queries$|_queries$|^num_latents$|^num_query_tokens$", 8),
    (r"num_mel_bins$|^num_mel_features$|feature_size$", 16),
)  # fmt: skip
DEPTH: tuple[tuple[str, int], ...] = tuple(
    row for row in SMALL if row[1] in (2, VOCABULARY) and "value_heads" not in row[0] and "experts" not in row[0]
)
# What an architecture asks for and has no default for.
NEEDED: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "informer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "time_series_transformer": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]},
    "reformer": {"is_decoder": True, "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16]},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
}
KEPT = re.compile(r"num_channels$|in_channels$|_channels_in$|^in_chans$|^num_labels$|^version$")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An architecture before it is known how small it can be."""

    name: str
    config: type[PreTrainedConfig]
    model: type[torch.nn.Module]


def _number(name: str, value: int, rules: tuple[tuple[str, int], ...]) -> int | None:
    if name.endswith("token_id") or name.endswith("token_index") or name.endswith("_idx"):
        return None if 0 <= value < VOCABULARY else 3 + sum(map(ord, name)) % 90
    if KEPT.search(name):
        return None
    for pattern, small in rules:
        if re.search(pattern, name):
            return small if value > small else None
    return None


def _sequence(name: str, value: Any, rules: tuple[tuple[str, int], ...]) -> Any:
    if not value:
        return None
    if all(type(one) is str for one in value):  # kinds of layers
        if name not in ("layer_types", "layers_block_type", "block_types", "attention_types", "mlp_layer_types"):
            return None
        kinds = list(dict.fromkeys(value))
        return [*kinds, *value][: max(2, len(kinds))]
    if not all(type(one) is int for one in value):
        return None
    if re.search(r"^depths?$|layers$|_depths$|num_blocks$|^num_encoder_blocks$", name):
        return type(value)(1 for _ in value)
    if rules is SMALL and re.search(r"(hidden_sizes|embed_dims?|channels|dims|hidden_size|conv_dim)$", name):
        return type(value)(min(one, 16 * (2 ** min(index, 2))) for index, one in enumerate(value))
    return None


def _value(config: Any, name: str) -> Any:
    """A setting; None if there is none, or if it differs between layers."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def shrunk(config: PreTrainedConfig, rules: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """Settings that make a configuration small."""
    settings: dict[str, Any] = {}
    fields = inspect.signature(type(config).__init__).parameters
    for name in fields:
        value = _value(config, name)
        if isinstance(value, PreTrainedConfig):
            inner = type(value)(**shrunk(value, rules)).to_dict()
            settings[name] = inner
        elif type(value) is int:
            small = _number(name, value, rules)
            if small is not None:
                settings[name] = small
        elif isinstance(value, (list, tuple)):
            found = _sequence(name, value, rules)
            if found is not None:
                settings[name] = found
    depth = max((len(value) for name, value in settings.items() if name.endswith("layer_types")), default=0)
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        if depth and name in settings:
            settings[name] = depth
    kept = _value(config, "num_key_value_heads")
    if kept is not None and kept == _value(config, "num_attention_heads"):
        settings["num_key_value_heads"] = settings.get("num_attention_heads", kept)
    return {name: value for name, value in settings.items() if name in fields}


def _tokens(config: Any) -> torch.Tensor:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    most = getattr(text, "vocab_size", None) or VOCABULARY
    generator = torch.Generator().manual_seed(1)
    special = {
        value for owner in (config, text) for name, value in vars(owner).items()
        if name.endswith(("token_id", "token_index")) and type(value) is int
    }  # fmt: skip
    ids = torch.randint(3, min(most, VOCABULARY), (2, 16), generator=generator)
    free = next(number for number in range(3, VOCABULARY) if number not in special)
    return torch.where(torch.isin(ids, torch.tensor(sorted(special) or [-1])), free, ids)


def _found(config: Any, *names: str) -> Any:
    """A setting of the configuration or of one of its parts."""
    for name in names:
        for owner in (config, *(part for part in vars(config).values() if isinstance(part, PreTrainedConfig))):
            value = _value(owner, name)
            if value is not None:
                return value
    return None


def _side(config: Any) -> tuple[int, int]:
    size = _found(config, "image_size", "img_size", "input_size")
    if isinstance(size, dict):
        size = (size.get("height", 32), size.get("width", 32))
    if isinstance(size, (list, tuple)) and len(size) >= 2:
        return int(size[-2]), int(size[-1])
    return (size, size) if type(size) is int else (64, 64)


def _pixels(config: Any) -> torch.Tensor:
    return torch.randn(2, _found(config, "num_channels", "in_channels", "in_chans") or 3, *_side(config))


def _frames(config: Any) -> torch.Tensor:
    count = _found(config, "num_frames", "frames_per_clip") or 4
    return torch.randn(1, count, _found(config, "num_channels", "in_channels", "in_chans") or 3, *_side(config))


def _mel(config: Any) -> torch.Tensor:
    bins = _found(config, "num_mel_bins", "num_mel_features", "input_feat_per_channel", "feature_size") or 16
    length = 2 * (_found(config, "max_source_positions") or 32)
    return torch.randn(2, bins, min(length, 256))


def _past(config: Any) -> int:
    lags = _found(config, "lags_sequence") or [0]
    return int(_found(config, "context_length", "prediction_length") or 32) + max(lags)


def _future(config: Any) -> int:
    return int(_found(config, "prediction_length") or 8)


Maker = Callable[[Any], Any]
# Argument of forward -> what can stand for it, tried in turn.
INPUTS: dict[str, tuple[Maker, ...]] = {
    "input_ids": (_tokens,),
    "attention_mask": (lambda config: torch.ones(2, 16, dtype=torch.long),),
    "decoder_input_ids": (_tokens,),
    "bbox": (lambda config: torch.arange(4).mul(7).expand(2, 16, 4).contiguous(),),
    "pixel_values": (_pixels, _frames),
    "pixel_values_videos": (_frames,),
    "input_features": (_mel, lambda config: _mel(config).transpose(1, 2).contiguous()),
    "input_values": (lambda config: torch.randn(2, 2048), lambda config: torch.randn(2, 1, 2048)),
    "audio_values": (lambda config: torch.randn(2, 1, 2048),),
    "spectrogram": (lambda config: _mel(config).transpose(1, 2).contiguous(),),
    "inputs_embeds": (lambda config: torch.randn(2, 16, _found(config, "hidden_size", "d_model") or 32),),
    "hidden_states": (lambda config: torch.randn(2, 16, _found(config, "hidden_size", "d_model") or 32),),
    "past_values": (lambda config: torch.randn(2, _past(config)), lambda config: torch.randn(2, _past(config), 1)),
    "past_time_features": (lambda config: torch.randn(2, _past(config), _found(config, "num_time_features") or 1),),
    "past_observed_mask": (lambda config: torch.ones(2, _past(config)),),
    "future_values": (lambda config: torch.randn(2, _future(config)),),
    "future_time_features": (
        lambda config: torch.randn(
            2, _found(config, "prediction_length") or 8, _found(config, "num_time_features") or 1
        ),
    ),
    "pixel_mask": (lambda config: torch.ones(2, *_side(config), dtype=torch.long),),
}
# Sets of arguments tried in turn, as far as forward takes them.
CALLS: tuple[tuple[str, ...], ...] = (
    ("input_ids", "pixel_values", "bbox", "decoder_input_ids"),
    ("input_ids", "attention_mask", "decoder_input_ids"),
    ("input_ids", "bbox"),
    ("input_ids",),
    ("pixel_values",),
    ("pixel_values", "decoder_input_ids"),
    ("pixel_values_videos",),
    ("input_features", "decoder_input_ids"),
    ("input_features", "input_ids"),
    ("input_features",),
    ("input_values",),
    ("input_values", "decoder_input_ids"),
    ("spectrogram",),
    ("audio_values",),
    ("past_values", "past_time_features", "past_observed_mask", "future_values", "future_time_features"),
    ("past_values",),
    ("pixel_values", "input_ids", "attention_mask", "pixel_mask"),
    ("inputs_embeds",),
    ("hidden_states",),
)


def input_sets(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Inputs that may fit a model, the richest first."""
    known = inspect.signature(model.forward).parameters
    required = {
        name for name, row in known.items() if row.default is row.empty and row.kind is row.POSITIONAL_OR_KEYWORD
    }
    tried: list[tuple[str, ...]] = []
    for call in (*CALLS, tuple(required)):
        names = tuple(name for name in call if name in known)
        if not names or names in tried or not required <= set(names) or any(name not in INPUTS for name in names):
            continue
        tried.append(names)
        for number in range(max(len(INPUTS[name]) for name in names)):
            generator_state = torch.random.get_rng_state()
            torch.manual_seed(3)
            made = {name: INPUTS[name][min(number, len(INPUTS[name]) - 1)](model.config) for name in names}
            torch.random.set_rng_state(generator_state)
            yield made


def candidates(only: str = "") -> Iterator[Candidate]:
    """The library's architectures, by the name of their configuration."""
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in TASKS]
    for name, config in configuration_auto.CONFIG_MAPPING_NAMES.items():
        if only and name != only:
            continue
        found = next((table[name] for table in tables if name in table), modeling_auto.MODEL_MAPPING_NAMES.get(name))
        found = found[0] if isinstance(found, (list, tuple)) else found
        model = getattr(transformers, found, None) if found else None
        settings = getattr(transformers, config, None)
        if isinstance(model, type) and isinstance(settings, type):
            yield Candidate(name, settings, model)


def _parameters(row: Candidate, config: PreTrainedConfig) -> int:
    with torch.device("meta"):
        return sum(one.numel() for one in row.model(config).parameters())


def built(row: Candidate) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A small model and inputs it accepts; the first error if there is no way."""
    errors: list[Exception] = []
    less = [tuple(one for one in SMALL if one is not left_out) for left_out in SMALL]
    seen: list[str] = []
    for rules in (SMALL, *less, DEPTH):
        try:
            config = row.config(**{**NEEDED.get(row.name, {}), **shrunk(row.config(**NEEDED.get(row.name, {})), rules)})
            text = config.to_json_string()
            if text in seen:
                continue
            seen.append(text)
            count = _parameters(row, config)
            if count > MOST_PARAMETERS:
                raise ValueError(f"{count} parameters")
            torch.manual_seed(0)
            model = row.model(config).eval()
        except Exception as caught:
            errors.append(caught)
            continue
        for inputs in input_sets(model):
            try:
                torch.manual_seed(5)
                with torch.no_grad():
                    model(**inputs)
                return model, inputs
            except Exception as caught:
                errors.append(caught)
    raise errors[0] if errors else ValueError("no inputs known for its forward")
