"""Chat templates of published model families, in their published form, with the added tokens of their tokenizers.

Written down from what the families document, shortened to what tells them apart. Tokenizers are of bytes.
"""

# ruff: noqa: E501 (lines of templates)
from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ANSWER = "It is 7."


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    template: str
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    """Added tokens that are not special."""
    stops: tuple[str, ...]
    call: str | None = None
    """How a model of the family writes a call of `look_up` with `CALL`, without the stop token; None: it drops tools
    or their results."""
    answer: str = ANSWER
    """How it writes `ANSWER`, likewise."""
    reasoning: str | None = None
    """What `call` says before the call."""
    system: bool = True
    spaces: str | None = None
    """How sentencepiece writes spaces: `replaced`; with one more before each text (`every`), or all (`first`)."""


CALL = {"word": "42", "limit": 3}
"""A text that looks like a number, and a number."""


def build(family: Family) -> PreTrainedTokenizerFast:
    """Build the family's tokenizer: its added tokens, and single bytes."""
    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if family.spaces:
        vocabulary = {"▁": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
        vocabulary |= {chr(code): 224 + code for code in range(33, 127)}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
        if family.spaces == "first":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        else:
            begin = [normalizers.Prepend("▁")] if family.spaces == "every" else []
            tokenizer.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "▁")])
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        cut = [] if family.spaces == "replaced" else [decoders.Strip(" ", left=1)]
        tokenizer.decoder = decoders.Sequence([*parts, *cut])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    bos = next((token for token in _BEGINS if token in family.special), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=family.stops[0], chat_template=family.template
    )


_BEGINS = ("<s>", "<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<seed:bos>", "<BOS_TOKEN>")
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_TOOLS = """{%- if tools %}
{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- "# Tools\\n\\nYou may call one or more functions.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
"""
_QWEN_RESULT = """{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
"""
_QWEN_CALLS = """{%- for tool_call in message.tool_calls or [] %}
{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}
{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
"""
QWEN25 = (
    _QWEN_TOOLS
    + """{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}{%- if message.content or not message.tool_calls %}{{- '\\n' + message.content }}{%- endif %}
"""
    + _QWEN_CALLS
    + _QWEN_RESULT
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN3 = (
    _QWEN_TOOLS
    + """{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}
{%- if ns.searching and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.searching = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}{%- set reasoning_content = '' %}
{%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}
{%- elif '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or reasoning_content) %}
{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
"""
    + _QWEN_CALLS
    + _QWEN_RESULT
    + """{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""
)
QWEN3_CODER = (
    """{%- if messages[0].role == 'system' or tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- if tools %}{{- "\\n\\n# Tools\\n\\n<tools>" }}
{%- for tool in tools %}{{- '\\n<function>\\n<name>' ~ tool.function.name ~ '</name>\\n<description>' ~ (tool.function.description | trim) ~ '</description>\\n<parameters>' }}
{%- for name, fields in (tool.function.parameters.properties or {}) | items %}{{- '\\n<parameter>\\n<name>' ~ name ~ '</name>\\n<type>' ~ fields.type ~ '</type>\\n</parameter>' }}{%- endfor %}
{{- '\\n</parameters>\\n</function>' }}{%- endfor %}
{{- '\\n</tools>\\n\\nReply in the following format:\\n\\n<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n</function>\\n</tool_call>' }}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}
{%- for tool_call in message.tool_calls or [] %}{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
{%- for name, value in tool_call.arguments | items %}{{- '<parameter=' + name + '>\\n' }}
{%- set value = value if value is string else value | tojson %}{{- value }}{{- '\\n</parameter>\\n' }}{%- endfor %}
{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
"""
    + _QWEN_RESULT
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA2 = """{%- if messages[0]['role'] == 'system' %}{%- set system_message = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- set content = (system_message if loop.index0 == 0 else '') + message['content'] %}
{%- if message['role'] == 'user' %}{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{- ' ' + content.strip() + ' ' + eos_token }}{%- endif %}{%- endfor %}"""
LLAMA3 = """{%- for message in messages %}
{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}
{%- if loop.index0 == 0 %}{%- set content = bos_token + content %}{%- endif %}{{- content }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
_LLAMA31_BODY = """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools %}
{%- set first_user_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions, please respond with a JSON for a function call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. Do not use variables.\\n\\n' }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{{- first_user_message + "<|eot_id|>" }}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}{%- if not message.tool_calls | length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
{%- elif message.role == "tool" or message.role == "ipython" %}{{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot_id|>" }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
LLAMA31 = (
    '{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}'
    + _LLAMA31_BODY
)
LLAMA32 = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}'
    "{%- endif %}" + _LLAMA31_BODY
)
_LLAMA3_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
MISTRAL = """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}{%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
{%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}{%- endif %}{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
{%- if message["role"] == "user" %}
{%- if tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS] [" }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
{%- for key, val in tool.items() if key != "return" %}{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}
{%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- "[TOOL_CALLS] [" }}
{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function | tojson %}{{- out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}{%- endfor %}
{%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
{%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
{%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + content | string + ", " }}
{%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}{%- endif %}{%- endfor %}"""
_MISTRAL_TOKENS = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
MAGISTRAL = """{{- bos_token }}{%- for message in messages %}
{%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}{%- if loop.last and tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
{%- elif message.role == 'assistant' %}{%- if message.reasoning_content %}{{- '[THINK]' + message.reasoning_content + '[/THINK]' }}{%- endif %}{{- message.content }}
{%- for call in message.tool_calls or [] %}{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{%- endfor %}{{- eos_token }}{%- endif %}{%- endfor %}"""
GEMMA2 = """{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- if message['role'] == 'assistant' %}{%- set role = 'model' %}{%- else %}{%- set role = message['role'] %}{%- endif %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
GEMMA3 = """{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set first_user_prefix = '' %}{%- set loop_messages = messages %}{%- endif %}
{%- for message in loop_messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- if message['role'] == 'assistant' %}{%- set role = 'model' %}{%- else %}{%- set role = message['role'] %}{%- endif %}
{{- '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}{{- message['content'] | trim }}{{- '<end_of_turn>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
PHI35 = """{%- for message in messages %}
{%- if message['role'] == 'system' and message['content'] %}{{- '<|system|>\\n' + message['content'] + '<|end|>\\n' }}
{%- elif message['role'] == 'user' %}{{- '<|user|>\\n' + message['content'] + '<|end|>\\n' }}
{%- elif message['role'] == 'assistant' %}{{- '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}"""
PHI4_MINI = """{%- for message in messages %}
{%- if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{- '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}
{%- else %}{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- else %}{{- eos_token }}{%- endif %}"""
DEEPSEEK_V3 = """{%- set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{- bos_token }}{{- ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{- '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}{%- set ns.is_tool = false %}
{%- for tool in message['tool_calls'] %}{{- '<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>' }}{%- endfor %}{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'assistant' %}{{- '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true %}{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<｜Assistant｜>' }}{%- endif %}"""
R1_DISTILL = DEEPSEEK_V3.replace(
    "{%- elif message['role'] == 'assistant' %}{{- '<｜Assistant｜>' + message['content']",
    "{%- elif message['role'] == 'assistant' %}{%- set content = message['content'] %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1] %}{%- endif %}{{- '<｜Assistant｜>' + content",
).replace("{{- '<｜Assistant｜>' }}{%- endif %}", "{{- '<｜Assistant｜><think>\\n' }}{%- endif %}")
_DEEPSEEK_PLAIN = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>",
)
GPT_OSS = """{{- "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\nKnowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: medium\\n\\n# Valid channels: analysis, commentary, final. Channel must be included for every message." }}
{%- if tools %}{{- "\\nCalls to these tools must go to the commentary channel: 'functions'." }}{%- endif %}{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}{%- set developer_message = messages[0].content %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set developer_message = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if developer_message or tools %}{{- "<|start|>developer<|message|>" }}{%- if developer_message %}{{- "# Instructions\\n\\n" }}{{- developer_message }}{{- "\\n\\n" }}{%- endif %}
{%- if tools %}{{- "# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- "// " + tool.description + "\\n" }}{{- "type " + tool.name + " = (_: " }}{{- tool.parameters | tojson }}{{- ") => any;\\n\\n" }}{%- endfor %}{{- "} // namespace functions" }}{%- endif %}{{- "<|end|>" }}{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
{%- if message.role == 'assistant' -%}
{%- if "content" in message and ("<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content) %}{{- raise_exception("You have passed a message containing <|channel|> tags in the content field.") }}{%- endif %}
{%- if "tool_calls" in message %}
{%- set tool_call = message.tool_calls[0] %}{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{%- if message.content and message.thinking %}{{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in one or the other, but not both.") }}
{%- elif message.content %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
{%- elif message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
{{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name + "<|channel|>commentary " }}{{- (tool_call.content_type if tool_call.content_type is defined else "json") + "<|message|>" }}{{- tool_call.arguments | tojson }}{{- "<|call|>" }}
{%- set last_tool_call.name = tool_call.name %}
{%- elif loop.last and not add_generation_prompt %}
{%- if "thinking" in message %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}{%- set last_tool_call.name = none %}
{%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last_tool_call.name = none %}{%- endif %}
{%- elif message.role == 'tool' -%}
{%- if last_tool_call.name is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
{{- "<|start|>functions." + last_tool_call.name }}{{- " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
{%- elif message.role == 'user' -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
GLM45 = """[gMASK]<sop>
{%- if tools -%}<|system|>
# Tools

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>

For each function call, output the function name and arguments within the following XML format:
<tool_call>{function-name}
<arg_key>{arg-key-1}</arg_key>
<arg_value>{arg-value-1}</arg_value>
</tool_call>{%- endif -%}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ m.content }}{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not m.content.endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- if m.reasoning_content is string %}{{ '\\n<think>' + m.reasoning_content.strip() + '</think>' }}{%- else %}{{ '\\n<think></think>' }}{%- endif %}
{%- if m.content.strip() %}{{ '\\n' + m.content.strip() }}{%- endif -%}
{% for tc in m.tool_calls or [] %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% for k, v in tc.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}
{%- elif m.role == 'system' -%}<|system|>
{{ m.content }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}"""
COHERE2 = """{{- bos_token }}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble
{%- if tools %}
{{ '## Available Tools\\n' }}{%- for tool in tools %}{{- {"name": tool.function.name, "description": tool.function.description, "parameters": tool.function.parameters} | tojson }}{%- endfor %}{%- endif %}
{%- if messages[0].role == 'system' %}{{- '\\n' + messages[0].content }}{%- endif %}<|END_OF_TURN_TOKEN|>
{%- for message in messages %}
{%- if message.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ message.content }}<|END_OF_TURN_TOKEN|>
{%- elif message.role == 'assistant' %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>
{%- if message.tool_calls %}{%- if message.tool_plan %}<|START_THINKING|>{{ message.tool_plan }}<|END_THINKING|>{%- endif %}<|START_ACTION|>[{%- for tc in message.tool_calls %}{{ {"tool_call_id": loop.index0 | string, "tool_name": tc.function.name, "parameters": tc.function.arguments} | tojson }}{%- if not loop.last %},{%- endif %}{%- endfor %}]<|END_ACTION|>
{%- else %}<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|>{%- endif %}<|END_OF_TURN_TOKEN|>{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{%- endif %}"""
NEMOTRON = """{{- bos_token }}{{- '<SPECIAL_10>System\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- if tools %}{{- '\\n\\nYou can use the following tools to assist the user if required:\\n<AVAILABLE_TOOLS>' + (tools | map(attribute='function') | list | tojson) + '</AVAILABLE_TOOLS>\\n\\nIf you decide to call any tool(s), use the following format:\\n<TOOLCALL>[{"name": "tool_name1", "arguments": "tool_args1"}]</TOOLCALL>' }}{%- endif %}{{- '\\n' }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<SPECIAL_11>User\\n' + message.content + '\\n' }}
{%- elif message.role == 'tool' %}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<SPECIAL_11>User\\n<TOOL_RESPONSE>[' }}{%- else %}{{- ', ' }}{%- endif %}{{- message.content }}{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- ']</TOOL_RESPONSE>\\n' }}{%- endif %}
{%- elif message.role == 'assistant' %}{%- set content = message.content.split('</think>')[-1] %}{{- '<SPECIAL_11>Assistant\\n' + content }}
{%- if message.tool_calls %}{{- '<TOOLCALL>[' }}{%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']</TOOLCALL>' }}{%- endif %}{{- '\\n<SPECIAL_12>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<SPECIAL_11>Assistant\\n<think>\\n' }}{%- endif %}"""
SMOLLM2 = """{%- for message in messages %}{%- if loop.first and messages[0]['role'] != 'system' %}{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
SEED_OSS = """{%- for message in messages %}{{- bos_token + message.role + '\\n' }}
{%- if message.reasoning_content is string %}{{- '<seed:think>' + message.reasoning_content + '</seed:think>' }}{%- endif %}{{- message.content + eos_token }}{%- endfor %}
{%- if add_generation_prompt %}{{- bos_token + 'assistant\\n' }}{%- endif %}"""

_JSON_CALL = '{"name": "look_up", "arguments": {"word": "42", "limit": 3}}'
_XML_CALL = (
    "<tool_call>\n<function=look_up>\n<parameter=word>\n42\n</parameter>\n<parameter=limit>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)

FAMILIES = {
    "qwen2.5": Family(
        template=QWEN25,
        special=_CHATML,
        plain=("<tool_call>", "</tool_call>", "<|fim_prefix|>"),
        stops=("<|im_end|>",),
        call=f"<tool_call>\n{_JSON_CALL}\n</tool_call>",
    ),
    "qwen3": Family(
        template=QWEN3,
        special=_CHATML,
        plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        stops=("<|im_end|>",),
        reasoning="Hm.",
        call=f"<think>\nHm.\n</think>\n\n<tool_call>\n{_JSON_CALL}\n</tool_call>",
    ),
    "qwen3-coder": Family(
        template=QWEN3_CODER,
        special=_CHATML,
        plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        stops=("<|im_end|>",),
        call=_XML_CALL,
    ),
    "llama2": Family(template=LLAMA2, special=("<unk>", "<s>", "</s>"), stops=("</s>",), spaces="every"),
    "llama3": Family(template=LLAMA3, special=_LLAMA3_TOKENS, stops=("<|eot_id|>",)),
    "llama3.1": Family(
        template=LLAMA31,
        special=_LLAMA3_TOKENS,
        stops=("<|eot_id|>", "<|eom_id|>"),
        call='{"name": "look_up", "parameters": {"word": "42", "limit": 3}}',
    ),
    "llama3.2": Family(
        template=LLAMA32,
        special=_LLAMA3_TOKENS,
        stops=("<|eot_id|>", "<|eom_id|>"),
        call='<|python_tag|>{"name": "look_up", "parameters": {"word": "42", "limit": 3}}',
    ),
    "mistral-v3": Family(
        template=MISTRAL,
        special=_MISTRAL_TOKENS,
        stops=("</s>",),
        call='[TOOL_CALLS] [{"name": "look_up", "arguments": {"word": "42", "limit": 3}, "id": "a1B2c3D4e"}]',
        spaces="first",
    ),
    "mistral-nemo": Family(
        template=MISTRAL,
        special=_MISTRAL_TOKENS,
        stops=("</s>",),
        call='[TOOL_CALLS][{"name": "look_up", "arguments": {"word": "42", "limit": 3}}]',
    ),
    "magistral": Family(
        template=MAGISTRAL,
        special=(
            *_MISTRAL_TOKENS,
            "[THINK]",
            "[/THINK]",
            "[ARGS]",
            "[TOOL_CONTENT]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
        ),
        stops=("</s>",),
        reasoning="Hm.",
        call='[THINK]Hm.[/THINK][TOOL_CALLS]look_up[ARGS]{"word": "42", "limit": 3}',
    ),
    "gemma2": Family(
        template=GEMMA2,
        special=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        plain=("\n\n", "  ", "<table>", "<b>"),
        stops=("<eos>", "<end_of_turn>"),
        system=False,
        spaces="replaced",
    ),
    "gemma3": Family(
        template=GEMMA3,
        special=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        plain=("\n\n", "  ", "<table>", "<b>"),
        stops=("<eos>", "<end_of_turn>"),
        spaces="replaced",
    ),
    "phi3.5": Family(
        template=PHI35,
        special=("<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|end|>", "<|system|>"),
        plain=("<|user|>",),
        stops=("<|endoftext|>", "<|end|>"),
        spaces="every",
    ),
    "phi4-mini": Family(
        template=PHI4_MINI,
        special=("<|endoftext|>", "<|end|>"),
        plain=("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
        stops=("<|endoftext|>", "<|end|>"),
    ),
    "deepseek-v3": Family(
        template=DEEPSEEK_V3,
        special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        plain=_DEEPSEEK_PLAIN,
        stops=("<｜end▁of▁sentence｜>",),
    ),
    "r1-distill": Family(
        template=R1_DISTILL,
        special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        plain=(*_DEEPSEEK_PLAIN, "<think>", "</think>"),
        stops=("<｜end▁of▁sentence｜>",),
    ),
    "gpt-oss": Family(
        template=GPT_OSS,
        special=(
            "<|startoftext|>",
            "<|endoftext|>",
            "<|return|>",
            "<|constrain|>",
            "<|channel|>",
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|call|>",
        ),
        stops=("<|return|>", "<|call|>", "<|endoftext|>"),
        answer=f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}",
        reasoning="Hm.",
        call="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.look_up "
        '<|constrain|>json<|message|>{"word": "42", "limit": 3}',
    ),
    "glm4.5": Family(
        template=GLM45,
        special=("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        plain=(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<tool_response>",
            "</tool_response>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "/nothink",
        ),
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        reasoning="Hm.",
        call="\n<think>Hm.</think>\n<tool_call>look_up\n<arg_key>word</arg_key>\n<arg_value>42</arg_value>\n"
        "<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    "command-r7b": Family(
        template=COHERE2,
        special=(
            "<BOS_TOKEN>",
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
        ),
        plain=(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ),
        stops=("<|END_OF_TURN_TOKEN|>",),
    ),
    "nemotron-nano": Family(
        template=NEMOTRON,
        special=("<s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
        plain=("<think>", "</think>", "<TOOLCALL>", "</TOOLCALL>"),
        stops=("<SPECIAL_12>",),
        answer=f"So.\n</think>\n\n{ANSWER}",
        reasoning="Hm.",
        call='Hm.\n</think>\n\n<TOOLCALL>[{"name": "look_up", "arguments": {"word": "42", "limit": 3}}]</TOOLCALL>',
    ),
    "smollm2": Family(template=SMOLLM2, special=(*_CHATML, "<repo_name>"), stops=("<|im_end|>",)),
    "seed-oss": Family(
        template=SEED_OSS,
        special=("<seed:bos>", "<seed:eos>"),
        plain=("<seed:think>", "</seed:think>"),
        stops=("<seed:eos>",),
    ),
}
