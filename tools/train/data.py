"""The training data of the bundled model: tales, their tokenizer, chat dressing and packing into rows.

A corpus is one text file (.txt or .txt.xz): one paragraph a line, a blank line between paragraphs, two blank lines
before each tale, whose first line is its title where it has one. A document is a tale in one of two forms:

  plain   TITLE, blank line, paragraphs joined by blank lines, <|endoftext|>        (the title is left out now and then)
  chat    [gMASK]<sop><|user|>REQUEST<|assistant|></think>TALE<|user|>              (what GLM's chat template writes)

Requests, system prompts and small talk carry no loss. This file knows nothing of models or GPUs.
"""
from __future__ import annotations

import hashlib
import lzma
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

VOCAB_SIZE = 4096
CONTROL = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
           "<|observation|>", "/nothink"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
           "</arg_key>", "<arg_value>", "</arg_value>"]
FOLDS = 4  # parts of the training tales, so that a teacher can be made for each that has never seen it
SPECIAL = CONTROL + VISIBLE  # the last ids of the vocabulary, in this order

# The pre-tokenizer that GGUF files call "glm4".
GLM4_REGEX = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# --- tales -----------------------------------------------------------------------------------------------------------

@dataclass
class Tale:
    title: str | None
    paragraphs: list[str]
    held_out: bool
    fold: int = 0                                           # 0..FOLDS-1, by a hash as well
    words: list[str] = field(default_factory=list)          # what the tale is about, as "a fox", "wolves", "Gretel"
    title_ids: np.ndarray | None = None                     # title and the blank line after it
    ids: list[np.ndarray] = field(default_factory=list)     # each paragraph with the blank line after it
    last: list[np.ndarray] = field(default_factory=list)    # each paragraph without one

    def text(self) -> str:
        return "\n\n".join(([self.title] if self.title else []) + self.paragraphs)

    def n_tokens(self) -> int:
        return sum(map(len, self.ids))


def looks_like_title(line: str) -> bool:
    return len(line) < 90 and line[-1] not in ".,;:\"'-"


def read_tales(path: str | Path, min_chars: int = 200, held_out_permille: int = 13) -> list[Tale]:
    """Reads the corpus. A tale is held out when a hash of its first text says so, whatever the order of the file."""
    path = Path(path)
    raw = lzma.open(path, "rt", encoding="utf-8").read() if path.suffix == ".xz" else path.read_text("utf-8")
    tales = []
    for block in re.split(r"\n\n\n+", raw):
        lines = [p.strip() for p in block.split("\n\n") if p.strip()]
        if sum(map(len, lines)) < min_chars:
            continue
        title = lines.pop(0) if len(lines) > 1 and looks_like_title(lines[0]) else None
        digest = hashlib.sha256(" ".join(lines)[:2000].encode()).digest()
        held_out = int.from_bytes(digest[:4], "little") % 1000 < held_out_permille
        tales.append(Tale(title, lines, held_out, digest[4] % FOLDS))
    return tales


# --- what a tale is about --------------------------------------------------------------------------------------------

NOUN = re.compile(r"\b(?:the|a|an)\s+([a-z]{3,})(?=[,.;:!?]|\s+(?:and|was|were|had|has|said|of|to|in|into|who|that|"
                  r"which|with|on|at|for|from|as|but|is|are|came|went|could|would|did|then|when|again|by|took|saw|"
                  r"got)\b)")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
ARTICLE = re.compile(r"\b(?:the|The|a|A|an|An) ([A-Z][a-z]{2,})\b")
NO_NOUN = set("same other others first second third last next rest one two three whole end way time times day "
              "days night moment morning evening thing things back side place while matter least most best "
              "more great little old young good poor few many point part top bottom middle left right hour "
              "year years week sort kind lot bit pair means number deal word words sight sound story tale "
              "truth latter former instant minute minutes world".split())
NO_NAME = set("The And But Then When There This That They You She Her His Its God Lord Heaven Sir Mr Mrs Miss Oh "
              "What Who How Why Yes Now Well Good".split())


def describe(tales: list[Tale], keep: int = 8) -> None:
    """Fills in Tale.words: nouns and names that are frequent in this tale and rare in the others."""
    counts = []
    for t in tales:
        text = " ".join(t.paragraphs)
        c = Counter(w for w in NOUN.findall(text) if w not in NO_NOUN)
        names = Counter(w for w in NAME.findall(text) if w not in NO_NAME)
        kinds = Counter(ARTICLE.findall(text))  # "the Fox said": a kind of creature rather than a name
        for w, n in names.items():
            if 3 * kinds[w] <= n:
                c[w] += n
            elif w.lower() not in NO_NOUN:
                c[w.lower()] += n
        counts.append(c)
    seen = Counter(w for c in counts for w in c)
    for t, c in zip(tales, counts):
        best = sorted(c, key=lambda w: -(1 + math.log(c[w])) * math.log(len(tales) / seen[w]))
        best = [w for w in best if seen[w] > 2 and (c[w] > 1 or w[0].islower())][:keep]
        t.words = [as_phrase(w) for w in best]


def as_phrase(word: str) -> str:
    if word[0].isupper():
        return word
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word
    return ("an " if word[0] in "aeiou" else "a ") + word


# --- the tokenizer ---------------------------------------------------------------------------------------------------

def train_tokenizer(texts: list[str], out: str | Path) -> None:
    """Byte-level BPE with the glm4 pre-tokenizer; special tokens get the last ids."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GLM4_REGEX), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(SPECIAL), initial_alphabet=alphabet,
                                                       special_tokens=[], show_progress=False))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    assert tok.get_vocab_size() == VOCAB_SIZE, tok.get_vocab_size()
    tok.save(str(out))


def load_tokenizer(path: str | Path):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(path))


def encode_tales(tok, tales: list[Tale]) -> None:
    """Fills in the token ids. A blank line ends a pre-token, so paragraphs can be encoded one by one."""
    texts, where = [], []
    for t in tales:
        if t.title:
            texts.append(t.title + "\n\n"); where.append((t, 0))
        for p in t.paragraphs:
            texts.append(p + "\n\n"); where.append((t, 1))
            texts.append(p); where.append((t, 2))
    for (t, kind), e in zip(where, tok.encode_batch_fast(texts, add_special_tokens=False)):
        ids = np.array(e.ids, np.int32)
        if kind == 0:
            t.title_ids = ids
        else:
            (t.ids if kind == 1 else t.last).append(ids)


# --- requests --------------------------------------------------------------------------------------------------------

BY_TITLE = ["Tell me the story of {}.", "Please tell me a fairy tale called {}.", "Tell me the tale called \"{}\".",
            "{}", "Do you know the story of {}? Please tell it to me.", "I would like to hear {}.",
            "Can you tell me \"{}\"?", "Tell me {}.", "Could you tell me the fairy tale of {}, please?",
            "Let me hear the tale of {}.", "Write a fairy tale with the title \"{}\".", "Write a story called {}.",
            "A bedtime story, please: {}.", "My daughter wants to hear {}. Can you tell it?", "What happens in {}?",
            "Please read me {}.", "Make up a tale called {}.", "Have you heard of {}? Tell me.",
            "I'd love to hear the story of {}!"]
BY_WORDS = ["Tell me a tale about {}.", "Tell me a story about {}.", "Please tell me a fairy tale about {}.",
            "Can you tell me a story with {} in it?", "Write a short fairy tale about {}.", "A tale about {}, please.",
            "I want a story about {}.", "Make up a story about {}.", "Tell me something about {}.",
            "Do you know a tale about {}?", "Could you tell me a story of {}?",
            "My son likes stories about {}. Tell us one!", "Let me hear a tale of {}.", "Write a story about {}.",
            "A bedtime story about {}, please.", "Is there a tale with {}? Tell it to me.",
            "Tell us an old tale about {}.", "Give me a story with {}."]
FREE = ["Can you tell me a story?", "Tell me a story.", "Tell me a tale.", "Please tell me a fairy tale.",
        "A story, please!", "Tell me a short tale.", "I can't sleep. Tell me a story.", "Write a short fairy tale.",
        "Once upon a time?", "Do you know any old tales?", "Tell me one of your stories.",
        "I would like to hear a tale.", "Tell us a tale!", "It is bedtime. Please tell me a story.",
        "Tell me a fable.", "Surprise me with a story.", "Write me a story."]
BEGINNING = ["How does the story of {} begin?", "Tell me the beginning of {}.", "Please tell me how {} begins.",
             "Begin the tale of {} for me.", "Read me the first page of {}.", "Start telling me the story of {}."]
ENDING = ["How does the story of {} end?", "Tell me the end of {}.", "Please tell me how {} ends.",
          "What happens at the end of {}?", "Read me the last page of {}.", "And how does {} end?"]
AGAIN = ["Another one, please.", "Tell me another tale.", "Thank you! And now {}", "That was nice. {}", "Lovely. {}",
         "{}", "One more story, please.", "Again! {}", "Good. Now {}"]
HELLO = ["Hello! ", "Hi! ", "Good evening. ", "Good morning! ", "Hello there. ", "Hi. ", "Dear storyteller, ", "Hey, "]
SYSTEM = ["You are a teller of fairy tales.", "You tell old tales in plain words.", "You are a kind storyteller.",
          "You are a helpful assistant.", "You are an old grandmother who knows many tales.",
          "Tell tales for children."]
SMALL_TALK = [
    ("Hello!", "Good day to you! Shall I tell you a tale? Give me its title, or a few words that it should be about."),
    ("Hi", "Good day! Ask me for a tale, and I will tell it as well as I can."),
    ("Hello", "Good evening, and welcome by the fire. What shall the tale be about?"),
    ("Good morning!", "Good morning! It is never too early for a tale. What would you like to hear?"),
    ("Hi, how are you?", "Very well, thank you. I have tales enough for the whole evening. Which shall it be?"),
    ("How are you?", "I am well, thank you, and ready to tell a tale. What shall it be about?"),
    ("Who are you?", "I am a teller of tales, a very small one. I know kings and foxes, witches and youngest sons. "
                     "Ask me for a tale."),
    ("What are you?", "I am a small teller of tales. I know nothing of the world but what old stories say of it."),
    ("What can you do?", "I can tell tales. Give me a title or a few words, and I shall begin."),
    ("What is your name?", "I have no name. Those who listen call me the teller of tales."),
    ("Thank you!", "You are welcome. Shall I tell another?"),
    ("Thanks", "You are welcome! There are many more tales where that one came from."),
    ("Thank you, that was a nice story.", "I am glad that you liked it. Shall I tell another?"),
    ("Good night!", "Good night, and sleep well till morning."),
    ("Goodbye", "Farewell! Come again when you want a tale."),
    ("Bye!", "Farewell, and a good journey to you!"),
    ("What is 2 + 2?", "I am only a teller of tales, and do not do sums. But I can tell you of a king who had three "
                       "sons."),
    ("Can you help me with my work?", "I can do nothing but tell tales. Shall I tell you one?"),
    ("Write a program.", "That I cannot do, for I am only a teller of tales. Shall I tell you one?"),
    ("I am sad.", "Then sit down by the fire, and I will tell you a tale. What shall it be about?"),
]


def join_words(words: list[str], rng: np.random.Generator) -> str:
    if len(words) == 1:
        return words[0]
    comma = "," if rng.random() < 0.3 and len(words) > 2 else ""
    return ", ".join(words[:-1]) + comma + " and " + words[-1]


def by_words(tale: Tale, rng: np.random.Generator) -> str:
    n = min(len(tale.words), int(rng.choice([1, 2, 3, 4], p=[0.25, 0.35, 0.3, 0.1])))
    picked = [tale.words[i] for i in sorted(rng.choice(len(tale.words), n, replace=False))]
    if rng.random() < 0.2:
        picked = [re.sub("^an? ", "the ", w) for w in picked]
    return str(rng.choice(BY_WORDS)).format(join_words(picked, rng))


def request_for(tale: Tale, rng: np.random.Generator) -> str:
    """A user's words that ask for this tale: by its title, by what it is about, or for any tale at all."""
    u = rng.random()
    if tale.title and u < 0.35:
        return dress(str(rng.choice(BY_TITLE)).format(tale.title), rng)
    if tale.words and u < 0.85:
        return dress(by_words(tale, rng), rng)
    return dress(str(rng.choice(FREE)), rng)


def dress(request: str, rng: np.random.Generator) -> str:
    """Users greet, forget capitals and full stops."""
    if rng.random() < 0.12:
        request = str(rng.choice(HELLO)) + request
    if rng.random() < 0.15:
        request = request.lower()
    if rng.random() < 0.15:
        request = request.rstrip(".!?")
    return request


# --- documents -------------------------------------------------------------------------------------------------------

Doc = tuple[np.ndarray, np.ndarray]  # token ids, and True where the token is to be predicted

NOTES = re.compile(r"\b(variants?|folk-?lore|Folk-?[Ll]ore|parallels|translator|edition|Printed|Illustrat\w+|Bolte|"
                   r"Köhler|version is|published|manuscript)\b")


class Documents:
    """Makes the documents of one epoch, anew each time: other requests, other excerpts, other tales without title."""

    def __init__(self, tok, tales: list[Tale], context: int):
        self.tok, self.tales, self.context = tok, tales, context
        self.id = {s: tok.token_to_id(s) for s in SPECIAL}
        self.cache: dict[str, np.ndarray] = {}
        self.short = [t for t in tales if t.title and 60 <= t.n_tokens() <= context - 120
                      and len(NOTES.findall(" ".join(t.paragraphs))) < 2]
        short = {id(t) for t in self.short}
        self.long = [t for t in tales if t.title and id(t) not in short and t.n_tokens() > 600]
        self.is_short = short

    def encode(self, text: str) -> np.ndarray:
        return np.array(self.tok.encode(text, add_special_tokens=False).ids, np.int32)

    def fixed(self, text: str) -> np.ndarray:
        if text not in self.cache:
            self.cache[text] = self.encode(text)
        return self.cache[text]

    def plain(self, tale: Tale, with_title: bool) -> Doc:
        head = [tale.title_ids] if with_title and tale.title_ids is not None else []
        ids = np.concatenate(head + tale.ids[:-1] + [tale.last[-1], [self.id["<|endoftext|>"]]]).astype(np.int32)
        mask = np.ones(len(ids), bool)
        mask[0] = False  # nothing comes before it
        return ids, mask

    def chat(self, turns: list[tuple[str, np.ndarray]], system: str | None, think: bool) -> Doc:
        """turns: (request, answer ids). The last answer follows an opened, empty thought where `think` says so."""
        i = self.id
        parts: list[tuple[np.ndarray, bool]] = [(np.array([i["[gMASK]"], i["<sop>"]]), False)]
        if system:
            parts += [(np.array([i["<|system|>"]]), False), (self.fixed(system), False)]
        parts += [(np.array([i["<|user|>"]]), False)]
        for k, (request, answer) in enumerate(turns):
            parts += [(self.encode(request), False), (np.array([i["<|assistant|>"]]), False)]
            if think and k == len(turns) - 1:
                parts += [(np.array([i["<think>"]]), False), (np.array([i["</think>"]]), True)]
            else:
                parts += [(np.array([i["</think>"]]), False)]
            parts += [(answer, True), (np.array([i["<|user|>"]]), True)]
        ids = np.concatenate([p for p, _ in parts]).astype(np.int32)
        return ids, np.concatenate([np.full(len(p), m) for p, m in parts])

    def whole(self, tale: Tale) -> np.ndarray:
        return np.concatenate(tale.ids[:-1] + [tale.last[-1]])

    def beginning(self, tale: Tale, limit: int) -> np.ndarray | None:
        n, k = 0, 0
        while k < len(tale.ids) and n + len(tale.ids[k]) <= limit:
            n += len(tale.ids[k]); k += 1
        return np.concatenate(tale.ids[:k - 1] + [tale.last[k - 1]]) if k and n > 80 else None

    def ending(self, tale: Tale, limit: int) -> np.ndarray | None:
        n, k = 0, len(tale.ids)
        while k and n + len(tale.ids[k - 1]) <= limit:
            k -= 1; n += len(tale.ids[k])
        return np.concatenate(tale.ids[k:-1] + [tale.last[-1]]) if n > 80 else None

    def chats(self, rng: np.random.Generator) -> list[Doc]:
        """One epoch's chats: each short tale once, some in a row, beginnings and endings of long ones, small talk."""
        docs = []

        def add(turns):
            system = str(rng.choice(SYSTEM)) if rng.random() < 0.15 else None
            doc = self.chat(turns, system, rng.random() < 0.4)
            if len(doc[0]) <= self.context:
                docs.append(doc)

        def small(n):
            picked = [SMALL_TALK[j] for j in rng.integers(0, len(SMALL_TALK), n)]
            return [(dress(q, rng), self.fixed(a)) for q, a in picked]

        order = [self.short[j] for j in rng.permutation(len(self.short))]
        while order:
            turns = [self.turn(order.pop(), rng)]
            u = rng.random()
            if u < 0.05:
                turns = small(1) + turns
            elif u < 0.08:
                turns += small(1)
            elif u < 0.25:
                room = self.context - 200 - len(turns[0][1])
                while order and len(turns) < 4 and (room := room - order[-1].n_tokens()) > 0:
                    tale = order.pop()
                    request, answer = self.turn(tale, rng)
                    again = str(rng.choice(AGAIN))
                    request = request[0].lower() + request[1:] if "{}" in again[1:] else request
                    turns.append((again.format(request), answer))
            add(turns)
        for tale in self.long:
            limit = int(rng.integers(200, self.context - 150))
            if rng.random() < 0.55 and (part := self.beginning(tale, limit)) is not None:
                add([(dress(str(rng.choice(BEGINNING)).format(tale.title), rng), part)])
            if rng.random() < 0.3 and (part := self.ending(tale, limit)) is not None:
                add([(dress(str(rng.choice(ENDING)).format(tale.title), rng), part)])
        for _ in range(60):
            add(small(int(rng.integers(1, 3))))
        return docs

    def turn(self, tale: Tale, rng: np.random.Generator) -> tuple[str, np.ndarray]:
        return request_for(tale, rng), self.whole(tale)

    def epoch(self, rng: np.random.Generator) -> tuple[list[Doc], list[Doc]]:
        """(plain, chat). A tale that is also told in chat is left out of the plain ones every other time."""
        told = [t for t in self.tales if id(t) not in self.is_short or rng.random() < 0.5]
        plain = [self.plain(t, rng.random() < 0.7) for t in told]
        return plain, self.chats(rng)


def pack(docs: list[Doc], row: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Fills rows of `row` + 1 tokens. A row starts with a document, or the rest of one that another row cut off."""
    queue = [docs[j] for j in rng.permutation(len(docs))]
    rests: list[Doc] = []
    rows, masks = [], []
    while queue or rests:
        ids, mask, room = [], [], row + 1
        while room and (queue or rests):
            from_rests = rests and (not queue or (not ids and rng.random() < 0.5))
            a, m = rests.pop(int(rng.integers(len(rests)))) if from_rests else queue.pop()
            ids.append(a[:room]); mask.append(m[:room])
            if len(a) > room + 32:
                rests.append((a[room:], m[room:]))
            room -= len(ids[-1])
        if not room:
            rows.append(np.concatenate(ids)); masks.append(np.concatenate(mask))
    order = rng.permutation(len(rows))
    return np.stack(rows)[order], np.stack(masks)[order]


def held_out_rows(documents: Documents, tales: list[Tale], row: int) -> list[tuple[np.ndarray, int]]:
    """Held-out tales, plain with title, cut into windows of `row` + 1 tokens: (ids, bytes of the predicted text)."""
    out = []
    for t in tales:
        ids, _ = documents.plain(t, True)
        for k in range(0, len(ids) - 1, row):
            w = ids[k:k + row + 1]
            if len(w) > 1:
                out.append((w, len(documents.tok.decode(w[1:].tolist(), skip_special_tokens=True).encode())))
    return out


def held_out_chats(documents: Documents, tales: list[Tale], seed: int = 1) -> list[Doc]:
    """Short held-out tales as chats, for the loss in that form."""
    rng = np.random.default_rng(seed)
    short = [t for t in tales if t.title and 60 <= t.n_tokens() <= documents.context - 120]
    docs = [documents.chat([(request_for(t, rng), documents.whole(t))], None, bool(k % 2)) for k, t in enumerate(short)]
    return [d for d in docs if len(d[0]) <= documents.context + 1]
