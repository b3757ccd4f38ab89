"""Clients of Python as people install them, against `sluice serve` with SmolLM2: what they read out of answers is what
their users get. The model is small and says what it likes; what is asked for is what a server owes: texts that are the same
whole and streamed, objects that obey their schemas, calls of the tools that were named.
"""
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

import support

MODEL = "smollm2"
ADDRESS = None
SERVER = None
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


class City(BaseModel):
    """Where something is."""
    name: Literal["Paris", "Rome", "Bern"]
    population: int
    is_capital: bool


LIKELIEST = {"temperature": 0}  # where a client's own parameters no longer have it
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
           "required": ["city", "days"], "additionalProperties": False}


def setUpModule():
    global ADDRESS, SERVER
    SERVER = support.serving("-m", support.smollm2(), "-c", "4096", "--alias", MODEL)
    ADDRESS = SERVER.__enter__()


def tearDownModule():
    SERVER.__exit__(None, None, None)


def needs(*modules):
    """Skips where the environment's list has not these: lists part where packages do not go together."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return unittest.skipIf(missing, "not in this list of packages: " + ", ".join(missing))


class Case(unittest.TestCase):
    def is_weather(self, arguments):
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.assertIn(value["city"], ("Paris", "Rome"))
        self.assertIsInstance(value["days"], int)
        self.assertEqual(set(value), {"city", "days"})


@needs("openai")
class OpenAI(Case):
    def setUp(self):
        import openai
        self.client = openai.OpenAI(base_url=ADDRESS + "/v1", api_key="none", max_retries=0, timeout=300)
        self.addCleanup(self.client.close)

    def test_openai_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])

    def test_openai_chat_whole_and_streamed(self):
        request = dict(model=MODEL, messages=QUESTION, max_tokens=24, temperature=0)
        whole = self.client.chat.completions.create(**request)
        text = whole.choices[0].message.content
        self.assertIn("Paris", text)
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        streamed, usage = "", None
        for chunk in self.client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
            streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(streamed, text)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_openai_stream_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=16, temperature=0) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertTrue(final.choices[0].message.content)

    def test_openai_log_probabilities(self):
        out = self.client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, temperature=0, logprobs=True,
                                                  top_logprobs=3)
        content = out.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(token.bytes) for token in content).decode(), out.choices[0].message.content)
        for token in content:
            self.assertEqual(token.logprob, max(other.logprob for other in token.top_logprobs))

    def test_openai_parse(self):
        out = self.client.chat.completions.parse(model=MODEL, messages=QUESTION, max_tokens=200, temperature=0,
                                                 response_format=City)
        self.assertIsInstance(out.choices[0].message.parsed, City)

    def test_openai_tools(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}]
        out = self.client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=200, temperature=0, tools=tools,
                                                  tool_choice="required")
        message = out.choices[0].message
        self.assertEqual(out.choices[0].finish_reason, "tool_calls")
        self.is_weather(message.tool_calls[0].function.arguments)
        # The call and its result go back: the template knows no tools, and has to take them all the same.
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        again = self.client.chat.completions.create(
            model=MODEL, messages=[*QUESTION, message.model_dump(exclude_none=True), result], tools=tools, max_tokens=16)
        self.assertTrue(again.choices[0].message.content or again.choices[0].message.tool_calls)

    def test_openai_responses(self):
        request = dict(model=MODEL, input=QUESTION, max_output_tokens=24, temperature=0)
        whole = self.client.responses.create(**request)
        self.assertIn("Paris", whole.output_text)
        with self.client.responses.stream(**request) as stream:
            streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            self.assertEqual(stream.get_final_response().output_text, streamed)
        self.assertEqual(streamed, whole.output_text)
        parsed = self.client.responses.parse(model=MODEL, input=QUESTION, max_output_tokens=200, temperature=0, text_format=City)
        self.assertIsInstance(parsed.output_parsed, City)

    def test_openai_completions(self):
        out = self.client.completions.create(model=MODEL, prompt=["The capital of France is", "1, 2, 3,"], max_tokens=6,
                                             temperature=0, logprobs=2, echo=True)
        self.assertEqual(len(out.choices), 2)
        self.assertTrue(out.choices[0].text.startswith("The capital of France is Paris"))
        for choice in out.choices:
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
            self.assertIsNone(choice.logprobs.token_logprobs[0])


@needs("anthropic")
class Anthropic(Case):
    def setUp(self):
        import anthropic
        self.client = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=0, timeout=300)
        self.addCleanup(self.client.close)

    def test_anthropic_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])

    def test_anthropic_whole_and_streamed(self):
        request = dict(model=MODEL, messages=QUESTION, max_tokens=24, extra_body=LIKELIEST, system="You know your cities.")
        whole = self.client.messages.create(**request)
        with self.client.messages.stream(**request) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(self.client.messages.count_tokens(model=MODEL, messages=QUESTION, system="You know your cities.")
                         .input_tokens, whole.usage.input_tokens)

    def test_anthropic_tools(self):
        tools = [{"name": "weather", "description": "The weather.", "input_schema": WEATHER}]
        out = self.client.messages.create(model=MODEL, messages=QUESTION, max_tokens=200, tools=tools, extra_body=LIKELIEST,
                                          tool_choice={"type": "tool", "name": "weather"})
        self.assertEqual(out.stop_reason, "tool_use")
        call = next(block for block in out.content if block.type == "tool_use")
        self.is_weather(call.input)
        again = self.client.messages.create(
            model=MODEL, max_tokens=16, tools=tools,
            messages=[*QUESTION, {"role": "assistant", "content": out.content},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}])
        self.assertTrue(again.content)


@needs("litellm")
class LiteLlm(Case):
    def setUp(self):
        import litellm
        litellm.telemetry = False
        litellm.suppress_debug_info = True
        self.litellm = litellm

    def test_litellm_openai(self):
        request = dict(model="openai/" + MODEL, api_base=ADDRESS + "/v1", api_key="none", messages=QUESTION, max_tokens=24,
                       temperature=0)
        whole = self.litellm.completion(**request).choices[0].message.content
        streamed = "".join(part.choices[0].delta.content or "" for part in self.litellm.completion(**request, stream=True))
        self.assertIn("Paris", whole)
        self.assertEqual(streamed, whole)

    def test_litellm_anthropic(self):
        out = self.litellm.completion(model="anthropic/" + MODEL, api_base=ADDRESS, api_key="none", messages=QUESTION,
                                      max_tokens=24, temperature=0)
        self.assertIn("Paris", out.choices[0].message.content)

    def test_litellm_tools(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
        out = self.litellm.completion(model="openai/" + MODEL, api_base=ADDRESS + "/v1", api_key="none", messages=QUESTION,
                                      max_tokens=200, temperature=0, tools=tools, tool_choice="required")
        self.is_weather(out.choices[0].message.tool_calls[0].function.arguments)

    def test_litellm_schema(self):
        out = self.litellm.completion(model="openai/" + MODEL, api_base=ADDRESS + "/v1", api_key="none", messages=QUESTION,
                                      max_tokens=200, temperature=0, response_format=City)
        City.model_validate_json(out.choices[0].message.content)


@needs("instructor", "openai")
class Instructor(Case):
    def test_instructor_modes(self):
        import instructor
        import openai
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            with self.subTest(str(mode)):
                with openai.OpenAI(base_url=ADDRESS + "/v1", api_key="none", max_retries=0, timeout=300) as plain:
                    client = instructor.from_openai(plain, mode=mode)
                    city = client.chat.completions.create(model=MODEL, messages=QUESTION, response_model=City, max_tokens=200,
                                                          temperature=0, max_retries=2)
                    self.assertIsInstance(city, City)


@needs("pydantic_ai")
class PydanticAi(Case):
    def agent(self, kind="chat", **options):
        from pydantic_ai import Agent
        from pydantic_ai.models import openai
        from pydantic_ai.providers.openai import OpenAIProvider
        provider = OpenAIProvider(base_url=ADDRESS + "/v1", api_key="none")
        made = openai.OpenAIChatModel if kind == "chat" else openai.OpenAIResponsesModel
        return Agent(made(MODEL, provider=provider), model_settings={"max_tokens": 200, "temperature": 0}, **options)

    def test_pydantic_ai_output(self):
        for kind in ("chat", "responses"):
            with self.subTest(kind):
                out = self.agent(kind, output_type=City).run_sync(QUESTION[0]["content"])
                self.assertIsInstance(out.output, City)

    def test_pydantic_ai_text_streamed(self):
        async def text():
            async with self.agent().run_stream(QUESTION[0]["content"]) as result:
                return [part async for part in result.stream_text(delta=True)]
        self.assertIn("Paris", "".join(asyncio.run(text())))


@needs("langchain_openai")
class LangChain(Case):
    def chat(self, **options):
        from langchain_openai import ChatOpenAI
        return ChatOpenAI(base_url=ADDRESS + "/v1", api_key="none", model=MODEL, temperature=0, max_tokens=200, max_retries=0,
                          timeout=300, **options)

    def test_langchain_text(self):
        for responses in (False, True):
            with self.subTest(f"responses={responses}"):
                chat = self.chat(use_responses_api=responses)
                whole = chat.invoke(QUESTION[0]["content"]).text
                self.assertIn("Paris", whole)
                self.assertEqual("".join(part.text for part in chat.stream(QUESTION[0]["content"])), whole)

    def test_langchain_structured_output(self):
        for method in ("json_schema", "function_calling"):
            with self.subTest(method):
                out = self.chat().with_structured_output(City, method=method).invoke(QUESTION[0]["content"])
                self.assertIsInstance(out, City)

    def test_langchain_tools(self):
        tool = {"name": "weather", "description": "The weather.", "parameters": WEATHER}
        out = self.chat().bind_tools([tool], tool_choice="any").invoke(QUESTION[0]["content"])
        self.is_weather(out.tool_calls[0]["args"])


@needs("llm")
class Llm(Case):
    """The program `llm`, with the server among its models as its manual says."""

    def llm(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "extra-openai-models.yaml").write_text(
                f"- model_id: sluice\n  model_name: {MODEL}\n  api_base: {ADDRESS}/v1\n  supports_schema: true\n"
                "  supports_tools: true\n")
            # The package that brings the model is a plugin for another engine.
            env = os.environ | {"LLM_USER_PATH": folder, "LLM_LOAD_PLUGINS": ""}
            out = subprocess.run([sys.executable, "-m", "llm", *arguments], env=env, capture_output=True, text=True,
                                 stdin=subprocess.DEVNULL, timeout=300)
            self.assertEqual(out.returncode, 0, out.stderr)
            return out.stdout

    def test_llm_prompt(self):
        prompt = ("-m", "sluice", "-o", "temperature", "0", "-o", "max_tokens", "24", QUESTION[0]["content"])
        whole = self.llm("--no-stream", *prompt)
        self.assertIn("Paris", whole)
        self.assertEqual(self.llm(*prompt), whole)

    def test_llm_schema(self):
        out = self.llm("-m", "sluice", "-o", "temperature", "0", "-o", "max_tokens", "200", "--schema", json.dumps(WEATHER), "hi")
        self.is_weather(out)


@needs("lm_eval")
class LmEval(Case):
    """A task of its own, from a file: questions with choices, judged by log-probabilities of an echoed prompt."""

    def test_lm_eval_choices(self):
        questions = [("The capital of France is", " Paris", " Lagos"), ("The opposite of hot is", " cold", " purple"),
                     ("Two plus two is", " four", " Tuesday"), ("Cats and", " dogs", " seventeen")]
        with tempfile.TemporaryDirectory() as folder:
            lines = [{"question": q, "choices": [right, wrong], "answer": 0} for q, right, wrong in questions]
            Path(folder, "questions.json").write_text("\n".join(map(json.dumps, lines)))
            Path(folder, "own.yaml").write_text(
                "task: own\ndataset_path: json\n"
                f"dataset_kwargs:\n  data_files: {{test: {folder}/questions.json}}\ntest_split: test\n"
                "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: choices\ndoc_to_target: answer\n"
                "target_delimiter: ''\nmetric_list:\n  - metric: acc\n")
            env = os.environ | {"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
            arguments = (f"base_url={ADDRESS}/v1/completions,model={MODEL},tokenizer_backend=remote,"
                         "tokenized_requests=False,num_concurrent=1,max_retries=1,max_length=2048")
            out = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
                                  "--tasks", "own", "--include_path", folder, "--output_path", folder + "/out"],
                                 env=env, capture_output=True, text=True, timeout=600)
            self.assertEqual(out.returncode, 0, out.stderr[-3000:])
            results = json.loads(next(Path(folder, "out").rglob("results*.json")).read_text())
            self.assertGreaterEqual(results["results"]["own"]["acc,none"], 0.75)


if __name__ == "__main__":
    support.main("clients")
