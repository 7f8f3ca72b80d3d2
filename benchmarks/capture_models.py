"""The architectures of the capture benchmark, small, with random weights: (name, how to make it, its inputs)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers as T


@dataclass(frozen=True)
class Model:
    """One architecture."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict[str, Any]]
    named: bool  # whether the requirements name it


MODELS: list[Model] = []
# What is called with which settings; a model that does not know a setting is not run with it.
VARIANTS: dict[str, dict[str, Any]] = {
    "eval": {},
    "train": {"train": True},
    "tuple": {"return_dict": False},
    "no cache": {"use_cache": False},
    "cache": {"use_cache": True},
    "eager attention": {"attention": "eager"},
    "sdpa attention": {"attention": "sdpa"},
}


def variants_of(row: Model, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variants that mean something for a model."""
    decodes = hasattr(row.make().config, "use_cache")
    for label, settings in VARIANTS.items():
        if quick and label not in ("eval", "train"):
            continue
        if "use_cache" in settings and not decodes:
            continue
        yield label, settings


def prepared(row: Model, settings: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model and its inputs under some settings."""
    torch.manual_seed(0)
    model = row.make()
    if "attention" in settings:
        model.set_attn_implementation(settings["attention"])
    inputs = row.inputs()
    for name in ("return_dict", "use_cache"):
        if name in settings:
            inputs[name] = settings[name]
    return model.eval(), inputs


torch.manual_seed(0)
tiny = dict(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=37,
    max_position_embeddings=64,
)
gq = dict(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=37,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
ids = torch.randint(3, 99, (2, 7))


def text():
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def img(s=30, c=3):
    return dict(pixel_values=torch.randn(2, c, s, s))


named = True


def add(name, make, inputs=text):
    MODELS.append(Model(name, make, inputs, named))


add("bert", lambda: T.BertModel(T.BertConfig(**tiny)))
add("roberta", lambda: T.RobertaModel(T.RobertaConfig(**tiny)))
add(
    "distilbert",
    lambda: T.DistilBertModel(T.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37)),
)
add("albert", lambda: T.AlbertModel(T.AlbertConfig(embedding_size=16, **tiny)))
add("electra", lambda: T.ElectraModel(T.ElectraConfig(embedding_size=16, **tiny)))
add(
    "deberta-v2",
    lambda: T.DebertaV2Model(T.DebertaV2Config(**tiny, relative_attention=True, pos_att_type=["p2c", "c2p"])),
)
add("gpt2", lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)))
add(
    "gpt-neo",
    lambda: T.GPTNeoForCausalLM(
        T.GPTNeoConfig(
            vocab_size=99,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
        )
    ),
)
add("gpt-neox", lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**tiny)))
add(
    "opt",
    lambda: T.OPTForCausalLM(
        T.OPTConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=37,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        )
    ),
)
add("bloom", lambda: T.BloomForCausalLM(T.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)))
add("llama", lambda: T.LlamaForCausalLM(T.LlamaConfig(**gq)))
add("mistral", lambda: T.MistralForCausalLM(T.MistralConfig(**gq)))
add("qwen2", lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**gq)))
add("qwen3", lambda: T.Qwen3ForCausalLM(T.Qwen3Config(head_dim=8, **gq)))
add("gemma", lambda: T.GemmaForCausalLM(T.GemmaConfig(head_dim=8, **gq)))
add("phi", lambda: T.PhiForCausalLM(T.PhiConfig(**gq)))
add(
    "falcon",
    lambda: T.FalconForCausalLM(
        T.FalconConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ),
)
add("mpt", lambda: T.MptForCausalLM(T.MptConfig(vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)))


def enc():
    return dict(input_ids=ids, decoder_input_ids=ids)


add(
    "t5",
    lambda: T.T5ForConditionalGeneration(
        T.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    enc,
)
b = dict(
    vocab_size=99,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=37,
    decoder_ffn_dim=37,
    max_position_embeddings=64,
)
add("bart", lambda: T.BartForConditionalGeneration(T.BartConfig(**b)), enc)
add("pegasus", lambda: T.PegasusForConditionalGeneration(T.PegasusConfig(**b)), enc)
add("mbart", lambda: T.MBartForConditionalGeneration(T.MBartConfig(**b)), enc)
wb = {k: v for k, v in b.items() if k != "max_position_embeddings"}
add(
    "whisper",
    lambda: T.WhisperForConditionalGeneration(
        T.WhisperConfig(
            **wb,
            num_mel_bins=8,
            max_source_positions=20,
            max_target_positions=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        )
    ),
    lambda: dict(input_features=torch.randn(2, 8, 40), decoder_input_ids=ids),
)
v = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, image_size=30, patch_size=10)
add("vit", lambda: T.ViTModel(T.ViTConfig(**v)), img)
add("deit", lambda: T.DeiTModel(T.DeiTConfig(**v)), img)
add("beit", lambda: T.BeitModel(T.BeitConfig(**v)), img)
add(
    "swin",
    lambda: T.SwinModel(
        T.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=2)
    ),
    lambda: img(32),
)
add(
    "convnext",
    lambda: T.ConvNextModel(T.ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])),
    lambda: img(32),
)
add(
    "resnet",
    lambda: T.ResNetModel(T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
    lambda: img(32),
)
add(
    "segformer",
    lambda: T.SegformerModel(
        T.SegformerConfig(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[8, 16],
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
        )
    ),
    lambda: img(32),
)
add(
    "clip",
    lambda: T.CLIPModel(T.CLIPConfig(text_config=dict(**tiny), vision_config=dict(**v))),
    lambda: dict(input_ids=ids, pixel_values=torch.randn(2, 3, 30, 30)),
)
add(
    "siglip",
    lambda: T.SiglipModel(T.SiglipConfig(text_config=dict(**tiny), vision_config=dict(**v))),
    lambda: dict(input_ids=ids, pixel_values=torch.randn(2, 3, 30, 30)),
)
add(
    "wav2vec2",
    lambda: T.Wav2Vec2Model(
        T.Wav2Vec2Config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            conv_dim=(32, 32),
            conv_stride=(4, 4),
            conv_kernel=(8, 8),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
            layerdrop=0.0,
        )
    ),
    lambda: dict(input_values=torch.randn(2, 1024)),
)
add(
    "mamba",
    lambda: T.MambaForCausalLM(T.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8)),
    lambda: dict(input_ids=ids),
)
add(
    "rwkv",
    lambda: T.RwkvModel(T.RwkvConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)),
    lambda: dict(input_ids=ids),
)
add("mixtral", lambda: T.MixtralForCausalLM(T.MixtralConfig(num_local_experts=4, **{**gq, "intermediate_size": 64})))
resnet = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"])
add(
    "detr",
    lambda: T.DetrForObjectDetection(
        T.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=T.ResNetConfig(**resnet),
            num_queries=5,
            **{name: value for name, value in b.items() if name not in ("vocab_size", "max_position_embeddings")},
        )
    ),
    lambda: img(64),
)
add("longformer", lambda: T.LongformerModel(T.LongformerConfig(attention_window=4, **tiny)))
named = False
add("xlnet", lambda: T.XLNetModel(T.XLNetConfig(vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=37)))
add("mpnet", lambda: T.MPNetModel(T.MPNetConfig(**tiny)))
add("camembert", lambda: T.CamembertModel(T.CamembertConfig(**tiny)))
add("stablelm", lambda: T.StableLmForCausalLM(T.StableLmConfig(**gq)))
add("olmo", lambda: T.OlmoForCausalLM(T.OlmoConfig(**gq)))
add("cohere", lambda: T.CohereForCausalLM(T.CohereConfig(**gq)))
add("gemma2", lambda: T.Gemma2ForCausalLM(T.Gemma2Config(head_dim=8, **gq)))
add("granite", lambda: T.GraniteForCausalLM(T.GraniteConfig(**gq)))
add("starcoder2", lambda: T.Starcoder2ForCausalLM(T.Starcoder2Config(**gq)))
add(
    "codegen",
    lambda: T.CodeGenForCausalLM(
        T.CodeGenConfig(vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    ),
)
add(
    "gptj",
    lambda: T.GPTJForCausalLM(
        T.GPTJConfig(vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    ),
)
add("layoutlm", lambda: T.LayoutLMModel(T.LayoutLMConfig(**tiny)))
add(
    "fnet",
    lambda: T.FNetModel(
        T.FNetConfig(
            vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=37, max_position_embeddings=64
        )
    ),
    lambda: dict(input_ids=ids),
)
add("dinov2", lambda: T.Dinov2Model(T.Dinov2Config(**v)), img)
add("mobilenetv2", lambda: T.MobileNetV2Model(T.MobileNetV2Config()), lambda: img(32))
add(
    "regnet",
    lambda: T.RegNetModel(T.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)),
    lambda: img(32),
)
