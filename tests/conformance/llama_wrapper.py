#!/usr/bin/env python3
"""Stands in for llama-server in llama.cpp's server tests: its flags become sluice's.

Started by those tests as LLAMA_SERVER_BIN_PATH. What has no counterpart is left
out; the plugin beside this file skips tests that are about such a flag.

SLUICE_BIN: the program. CONFORMANCE_MODEL: the small model that the tests expect
(stories260K). With CONFORMANCE_EXEC_LLAMA=llama-server the original is started
instead, for a baseline; only the model is replaced then.
"""

import os
import sys

ONE_VALUE = {
    "--port": "--port", "--host": "--host", "--alias": "--model-name",
    "--batch-size": "--max-batch-tokens", "--threads": "--threads", "--parallel": "--max-running",
    "--chat-template-file": "--chat-template",
}
IGNORED_WITH_VALUE = {
    "--temp", "--seed", "--hf-repo", "--hf-file", "--model-url", "--model-draft", "--ubatch-size",
    "--n-gpu-layers", "--pooling", "--tags", "-ctk", "-ctv", "-fa", "--n-predict",
    "--slot-save-path", "--grp-attn-n", "--grp-attn-w", "--lora", "--spec-type",
    "--spec-draft-n-max", "--spec-draft-n-min", "--spec-synth-len", "--spec-synth-rates",
    "--reasoning-format", "--reasoning", "--chat-template", "--mmproj-url",
    "--media-path", "--sleep-idle-seconds", "--cache-ram", "--tools", "--tools-runtime",
    "--mcp-servers-config", "--mcp-servers-json", "--models-dir", "--models-max",
    "--models-preset", "--model", "--ctx-size", "--api-key", "--cors-origins",
}


# Of the templates that llama.cpp has built in, those that its tests name.
BUILT_IN_TEMPLATES = {
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
              "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
              "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ {'system': 'SYSTEM', 'user': "
                 "'USER', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>{{ m.content | trim }}"
                 "<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}"
                 "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}


def template_arguments(template: str) -> list[str]:
    """A template's text as a file that lives as long as the server."""
    if template == "chatml":
        return []  # what a model without a template has anyway
    memory = os.memfd_create("template", 0)
    os.write(memory, BUILT_IN_TEMPLATES.get(template, template).encode())
    return ["--chat-template", f"/proc/self/fd/{memory}"]


def read(arguments: list[str]) -> tuple[dict[str, str], set[str]]:
    """Flags with a value, and those without."""
    values, plain, at = {}, set(), 0
    while at < len(arguments):
        flag = arguments[at]
        if flag in ONE_VALUE or flag in IGNORED_WITH_VALUE:
            values[flag] = arguments[at + 1]
            at += 2
        else:
            plain.add(flag)
            at += 1
    return values, plain


def sluice_arguments(values: dict[str, str], plain: set[str], model: str) -> list[str]:
    # The model is tiny, and so is what its sequences need.
    out = ["serve", model, "--any-model-name", "--log-level", "warning", "--kv-memory", "64MiB"]
    if "--chat-template" in values:
        out += template_arguments(values["--chat-template"])
    for flag, value in values.items():
        if flag in ONE_VALUE:
            out += [ONE_VALUE[flag], value if flag.startswith("--chat") else value.split(",")[0]]
    if "--ctx-size" in values:
        # llama-server divides its context among the slots unless the cache is unified.
        slots = 1 if "--kv-unified" in plain else int(values.get("--parallel", "1"))
        out += ["--context", str(int(values["--ctx-size"]) // slots)]
    for key in values.get("--api-key", "").split(","):
        out += ["--api-key", key] if key else []
    for origin in values.get("--cors-origins", "*").split(","):
        out += ["--cors-origin", origin]
    return out


def main():
    model = os.environ["CONFORMANCE_MODEL"]
    if original := os.environ.get("CONFORMANCE_EXEC_LLAMA"):
        kept, skip = [], False
        for argument in sys.argv[1:]:
            if skip or argument in ("--hf-repo", "--hf-file", "--offline"):
                skip = not skip and argument != "--offline"
                continue
            kept.append(argument)
        os.execv(original, [original, "-m", model, *kept])
    values, plain = read(sys.argv[1:])
    program = os.environ["SLUICE_BIN"]
    os.execv(program, [program, *sluice_arguments(values, plain, model)])


if __name__ == "__main__":
    main()
