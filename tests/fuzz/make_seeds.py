"""Writes the seeds of the gguf_loader fuzz target: little models of a few kilobytes.

    build/venv/bin/python tests/fuzz/make_seeds.py FOLDER
"""

import sys
from pathlib import Path

import gguf
import numpy

LAYERS, HEADS, KV_HEADS, EMBEDDING, FFN = 1, 2, 1, 32, 32
# One of each way of storing: as it is, in blocks, and in blocks that loading may lay out anew.
QUANTISED = {"ffn_down": gguf.GGMLQuantizationType.Q8_0, "ffn_up": gguf.GGMLQuantizationType.Q4_0}
HEAD, KV = EMBEDDING // HEADS, EMBEDDING // HEADS * KV_HEADS
EXTRA = {
    "qwen2": {"attn_q.bias": EMBEDDING, "attn_k.bias": KV, "attn_v.bias": KV},
    "gemma3": {"attn_q_norm.weight": HEAD, "attn_k_norm.weight": HEAD,
               "post_attention_norm.weight": EMBEDDING, "post_ffw_norm.weight": EMBEDDING},
}
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"]


def write(path, architecture):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([2, 3, 3] + [1] * (len(TOKENS) - 3))

    def tensor(name, *shape):
        values = numpy.full(shape, 0.01, dtype=numpy.float32)
        kind = QUANTISED.get(name.split(".")[-2])
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    tensor("token_embd.weight", len(TOKENS), EMBEDDING)
    tensor("output_norm.weight", EMBEDDING)
    tensor("output.weight", len(TOKENS), EMBEDDING)
    for layer in range(LAYERS):
        for name, size in EXTRA.get(architecture, {}).items():
            tensor(f"blk.{layer}.{name}", size)
        for name, shape in {"attn_norm": [EMBEDDING], "attn_q": [EMBEDDING, EMBEDDING],
                            "attn_k": [KV, EMBEDDING], "attn_v": [KV, EMBEDDING],
                            "attn_output": [EMBEDDING, EMBEDDING], "ffn_norm": [EMBEDDING],
                            "ffn_gate": [FFN, EMBEDDING], "ffn_up": [FFN, EMBEDDING],
                            "ffn_down": [EMBEDDING, FFN]}.items():
            tensor(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for architecture in ("llama", "qwen2", "gemma3"):
        write(folder / f"{architecture}.gguf", architecture)


if __name__ == "__main__":
    main()
