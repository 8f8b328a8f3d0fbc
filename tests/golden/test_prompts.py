"""What a model folder makes of a chat and of a bare prompt, token for token as the `transformers` library has it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import transformers

from gateway.admission.generation import Generation, Turn
from gateway.admission.tokenizer import PromptEncoder
from tests.cards import on_wire
from tests.unit.models.folder import BOS, Folder, write_tokenizer
from worker.models.card import read_card

CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
TEMPLATES = {"template writes BOS": "{{ bos_token }}" + CHAT, "template does not": CHAT}


@pytest.fixture
def folder(tmp_path):
    return Folder().write(tmp_path / "tiny")


async def ours(folder, **what) -> list[int]:
    with ThreadPoolExecutor(1) as pool:
        [ids] = await PromptEncoder(on_wire(read_card(folder)), pool).encode(Generation(model="m", **what))
    return ids


def chat(folder) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


async def check(folder) -> None:
    assert await ours(folder, turns=(Turn("user", "hi"),)) == chat(folder)
    bare = transformers.AutoTokenizer.from_pretrained(folder)(f"hi {BOS}").input_ids
    assert await ours(folder, prompts=(f"hi {BOS}",)) == bare


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("adds_bos", [True, False], ids=["tokenizer adds BOS", "tokenizer does not"])
async def test_exactly_the_bos_that_the_folder_asks_for(folder, template, adds_bos):
    write_tokenizer(folder, adds_bos=adds_bos, chat_template=template)
    await check(folder)


@pytest.mark.parametrize("says", [True, False])
async def test_the_tokenizer_itself_decides_and_not_add_bos_token(folder, says):
    for adds in (True, False):
        write_tokenizer(folder, adds_bos=adds, chat_template=CHAT, add_bos_token=says)
        await check(folder)


async def test_a_template_file_goes_before_the_one_in_the_config(folder):
    write_tokenizer(folder, chat_template="never")
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    await check(folder)


async def test_of_several_templates_the_default_one(folder):
    named = [{"name": "other", "template": "never"}, {"name": "default", "template": CHAT}]
    write_tokenizer(folder, chat_template=named)
    await check(folder)


async def test_special_tokens_as_objects_and_as_mere_names(folder):
    added = {"0": {"content": BOS, "special": True}, "5": {"content": "$", "special": False}}
    bos = {
        "__type": "AddedToken",
        "content": BOS,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }
    write_tokenizer(folder, chat_template="{{ bos_token }}" + CHAT, bos_token=bos, added_tokens_decoder=added)
    await check(folder)
    write_tokenizer(folder, chat_template="{{ bos_token }}" + CHAT, bos_token=None, eos_token="!", pad_token=None)
    await check(folder)
