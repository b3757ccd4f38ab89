"""Small models of the architecture llama, written by the package gguf: with random blocks of a number format, or such
that say a script whatever they are asked.
"""
import gguf
import numpy as np

CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_characters():
    """GPT-2's alphabet of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def writer(path, tokens, types, width, heads, feed_forward, context):
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("made")
    out.add_block_count(1)
    out.add_context_length(context)
    out.add_embedding_length(width)
    out.add_feed_forward_length(feed_forward)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_rope_dimension_count(width // heads)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_merges([])
    out.add_eos_token_id(257)
    out.add_add_bos_token(False)
    out.add_chat_template(CHATML)
    return out


def end(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def vocabulary(more=()):
    tokens = [*byte_characters(), "<|im_start|>", "<|im_end|>", *more]
    types = [1] * 256 + [3, 3] + [1] * len(more)
    while len(tokens) % 256:
        tokens.append(f"<|unused{len(tokens)}|>")
        types.append(5)
    return tokens, types


def of_blocks(path, kind, blocks, seed):
    """A model of one layer whose matrices are all of one type. blocks(rows, columns): their bytes."""
    source = np.random.default_rng(seed)
    width, feed_forward = 256, 512
    tokens, types = vocabulary()
    out = writer(path, tokens, types, width, 4, feed_forward, 256)
    shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width), "blk.0.ffn_gate": (feed_forward, width),
              "blk.0.ffn_up": (feed_forward, width), "blk.0.ffn_down": (width, feed_forward)}
    shapes |= {f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    for name, (rows, columns) in shapes.items():
        out.add_tensor(name + ".weight", blocks(rows, columns), raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        out.add_tensor(name + ".weight", source.uniform(0.5, 1.5, width).astype(np.float32))
    end(out)


def of_script(path, text, piece=4):
    """A model that says `text` after the template's last token, in pieces of so many bytes, and then ends its turn: a
    layer of zeros between an embedding that is one column a token and an output that answers to the token before."""
    characters = byte_characters()
    data = text.encode()
    script = ["".join(characters[byte] for byte in data[at:at + piece]) for at in range(0, len(data), piece)]
    # Each place has a token of its own, whatever its text.
    tokens, types = vocabulary(script)
    count, width = len(tokens), len(tokens)
    following = {characters.index("\u010a"): 258}  # the line feed that the template's last line ends with
    following |= {258 + i: 258 + i + 1 for i in range(len(script) - 1)} | {258 + len(script) - 1: 257}
    output = np.zeros((count, width), np.float16)
    for token in range(count):
        output[following.get(token, 257), token] = 1
    out = writer(path, tokens, types, width, 4, 32, 16384)
    out.add_tensor("token_embd.weight", np.eye(count, dtype=np.float16))
    out.add_tensor("output.weight", output)
    for name, shape in {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
                        "attn_output": (width, width), "ffn_gate": (32, width), "ffn_up": (32, width),
                        "ffn_down": (width, 32)}.items():
        out.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float16))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        out.add_tensor(name + ".weight", np.ones(width, np.float32))
    end(out)
