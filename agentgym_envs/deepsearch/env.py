"""The DeepSearch scenario: answer a question by searching a corpus, several times if need be.

The action grammar and the form of results are Search-R1's. `docs/scenarios/deepsearch.md` says what differs.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from agentgym_envs.core import Fault, Outcome, Start, TextEnv
from agentgym_envs.deepsearch import grammar, oracle, prompts, real, scoring, shared, tasks
from agentgym_envs.deepsearch.oracle import Shown
from agentgym_envs.deepsearch.retrieval import Retriever, RetrieverFault, open_retriever
from agentgym_envs.deepsearch.tasks import Question
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.verbs import Verb, quoted

_TEXT_VERSION = "text 1"  # a new one as soon as the same actions give another text
_MAX_PASSAGE_CHARS = 10_000
_MAX_TOP_K = 20
_MAX_PAGE_CHARS = 50_000  # of all passages together, so that an observation holds them
_MAX_SEARCHES = 100


class _Page(NamedTuple):
    """What was shown for a search: as text, and passage by passage."""

    text: str
    passages: list[Shown]


class DeepSearchEnv(TextEnv):
    """Answer the question: `<search>...</search>` as often as needed, then `<answer>...</answer>`.

    Score: 1 if the answer is one of the accepted ones (exact match of normal forms, see `scoring`), else 0. The
    answer ends the episode. `info` also has `searches` (how many were made) and `metric`; at the end `answer`
    and `f1`.

    Starting elsewhere: `options={"init": {"question": "Who?", "answers": ["Nobody", "No one"]}}`.
    """

    scenario: ClassVar[str] = "DeepSearch"
    verbs: ClassVar[Sequence[Verb]] = grammar.VERBS

    def __init__(
        self,
        *,
        retriever: str = "lexical",
        top_k: int = 3,
        passage_chars: int = 1_000,
        max_searches: int = 10,
        normaliser: str = "careful",
        timeout: float = 10.0,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            retriever: `"lexical"`, `"dense"`, `"hybrid"`, or the http:// or https:// address of a Search-R1 style
                server.
            top_k: Passages that a search returns, 1 to 20.
            passage_chars: Characters after which a passage is cut, 50 to 10,000; with `top_k` passages no more
                than 50,000 in all.
            max_searches: Searches that an episode allows, 1 to 100; further ones are refused.
            normaliser: By which normal form answers are compared: `"careful"` or `"squad"` (SQuAD's, Search-R1's).
            timeout: Seconds that a search at an address may take; a slower one is a fault.
            options: Those of every scenario (see `TextEnv`).

        Raises:
            ValueError: If an argument is not accepted; the message says what is.
        """
        super().__init__(**options)
        self._top_k = self._whole_number("top_k", top_k, 1, _MAX_TOP_K)
        self._passage_chars = self._whole_number("passage_chars", passage_chars, 50, _MAX_PASSAGE_CHARS)
        if top_k * passage_chars > _MAX_PAGE_CHARS:
            raise ValueError(
                f"{self.scenario}: {top_k} passages of {passage_chars:,} characters are too many for one observation; "
                f"accepted are top_k times passage_chars up to {_MAX_PAGE_CHARS:,}."
            )
        self._max_searches = self._whole_number("max_searches", max_searches, 1, _MAX_SEARCHES)
        if normaliser not in scoring.NORMALISERS:
            accepted = ", ".join(scoring.NORMALISERS)
            raise ValueError(f"{self.scenario}: unknown normaliser {normaliser!r}; accepted are {accepted}.")
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= 3_600:
            raise ValueError(f"{self.scenario}: timeout is a number of seconds up to 3,600, not {timeout!r}.")
        self._normaliser = normaliser
        self._retriever_spec, self._timeout = self._checked_retriever(retriever), float(timeout)
        self._retriever: Retriever | None = None  # opened at the first reset
        self._pages: dict[str, _Page] = {}  # query key -> what was shown for it, in this episode
        self._replayed: Mapping[str, _Page] = {}  # what a replay after a fault shows again, without asking anew
        self._kept: Mapping[str, _Page] = {}  # the same, between the fault and the replay
        self._searches = 0

    # ---- what the two sources provide -----------------------------------------------------------------------

    @classmethod
    def question_of(cls, task: Task) -> Question:
        """Return the question of a task."""
        raise NotImplementedError

    @classmethod
    def corpus(cls) -> Path:
        """Return the passages to search: a JSON-lines file or a folder of `retrieval.corpus`."""
        raise NotImplementedError

    # ---- the episode ----------------------------------------------------------------------------------------

    def available_actions(self) -> list[str]:
        """Raise, as any text can be searched for.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{self.scenario}: the actions cannot be listed; any text can be searched for.")

    def oracle_action(self) -> str | None:
        """Return the next action of the question's plan, read from the passages that were shown.

        None once the episode has ended, and where the passages do not say what the plan needs (they are cut too
        short, or no searches are left). A question without a plan (real and custom ones) is searched for once and
        then answered from its record.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        self._check_episode()
        if self._outcome.end:
            return None
        found = {key: page.passages for key, page in self._pages.items()}
        step = oracle.next_step(self._question, found)
        if step is None:
            return None
        if step.query is None:
            return grammar.answer(step.answer)
        return grammar.search(step.query) if self._searches < self._max_searches else None

    def close(self) -> None:
        """Give back the retriever; a second call does nothing."""
        self._close_retriever()
        super().close()

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        tasks.question_of_init(init)
        return Task("deepsearch-custom", -1, "custom", "train", source="custom")

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        del rng  # a task is a question: nothing is drawn
        self._pages, self._searches = {}, 0
        self._replayed, self._kept = self._kept, {}
        self._question = self.question_of(task) if init is None else tasks.question_of_init(init)
        self._opened_retriever()
        statement = prompts.statement(self._question.text, self._max_searches)
        return Start(statement, self._question.text, info=self._facts())

    def _act(self, action: str) -> Outcome:
        try:
            kind, text = grammar.parse(action)
        except grammar.NotUnderstood as error:
            return self._refused(str(error))
        if kind == "answer":
            return self._answer(text)
        if self._searches >= self._max_searches:
            told = f"No search is left: all {self._max_searches} have been made."
            return self._refused(f"{told} Give your answer: {grammar.answer('text')}.")
        return self._search(text)

    def _answer(self, text: str) -> Outcome:
        exact, f1 = scoring.score(text, self._question.answers, self._normaliser)
        told = f"You answered {quoted(text)}. That is {'right' if exact else 'not right'}."
        return Outcome(told, float(exact), exact, end="answer", info={**self._facts(), "answer": text, "f1": f1})

    def _search(self, query: str) -> Outcome:
        key = oracle.query_key(query)
        note = ""
        if key in self._pages:
            number = list(self._pages).index(key) + 1
            note = f"You have searched for this before (it was your query {number}); the result is the same.\n"
        else:
            self._pages[key] = self._replayed.get(key) or self._page(query)
        self._searches += 1
        left = self._max_searches - self._searches
        return Outcome(f"{note}{self._pages[key].text}\nSearches left: {left}.", 0.0, info=self._facts())

    def _refused(self, told: str) -> Outcome:
        return Outcome(told, 0.0, valid=False, info=self._facts())

    def _facts(self) -> dict[str, str | int | float | bool]:
        return {"searches": self._searches, "metric": f"exact match, {self._normaliser} normal form"}

    # ---- the retriever --------------------------------------------------------------------------------------

    def _page(self, query: str) -> _Page:
        try:
            hits = self._opened_retriever().search([query], self._top_k)[0]
        except RetrieverFault as fault:
            raise Fault("retriever", str(fault)) from fault
        return _Page(prompts.information(hits, self._passage_chars), oracle.shown(hits, self._passage_chars))

    def _opened_retriever(self) -> Retriever:
        if self._retriever is None:
            spec = self._retriever_spec
            try:
                if _is_address(spec):
                    self._retriever = open_retriever(spec, timeout=self._timeout)
                else:
                    self._retriever = shared.acquire(spec, self.corpus())
            except RetrieverFault as fault:
                raise Fault("retriever", str(fault)) from fault
        return self._retriever

    def _restart(self) -> None:
        self._close_retriever()
        self._kept = {**self._replayed, **self._pages}

    def _close_retriever(self) -> None:
        retriever, self._retriever = self._retriever, None
        if retriever is None:
            return
        if _is_address(self._retriever_spec):
            retriever.close()
        else:
            shared.release(retriever)

    # ---- arguments ------------------------------------------------------------------------------------------

    def _checked_retriever(self, spec: object) -> str:
        if isinstance(spec, str) and (spec in ("lexical", "dense", "hybrid") or _is_address(spec)):
            return spec
        raise ValueError(
            f"{self.scenario}: unknown retriever {spec!r}; accepted are 'lexical', 'dense', 'hybrid' and the "
            "http:// or https:// address of a Search-R1 style server."
        )

    def _whole_number(self, name: str, value: object, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{self.scenario}: {name} is a whole number from {least} to {most:,}, not {value!r}.")
        return value


class EmbeddedDeepSearchEnv(DeepSearchEnv):
    """DeepSearch over the questions and the corpus that come with this package."""

    @classmethod
    def task_table(cls) -> TaskTable:
        """The embedded questions, set by set."""
        return tasks.embedded_table()

    @classmethod
    def data_hash(cls) -> str:
        """Hash of questions and corpus, and the version of this text."""
        return f"{tasks.manifest()['hash']}, {_TEXT_VERSION}"

    @classmethod
    def question_of(cls, task: Task) -> Question:
        """Return the question of a task."""
        return tasks.embedded_questions()[task.index]

    @classmethod
    def corpus(cls) -> Path:
        """Return the file of the embedded corpus."""
        return tasks.CORPUS


class RealDeepSearchEnv(DeepSearchEnv):
    """DeepSearch over the real question sets and the Wikipedia corpus."""

    def __init__(self, **options: Any) -> None:
        """Make the environment.

        Args:
            options: As for `DeepSearchEnv`.

        Raises:
            ValueError: If an argument is not accepted, or questions or corpus are missing.
        """
        listed = options.get("tasks")
        if listed is None:
            real.check_chosen(options.get("subset"), options.get("split", "train"))
        elif isinstance(listed, list | tuple):
            for index in listed:
                if isinstance(index, int):
                    real.check_index(index)
        super().__init__(**options)
        if not _is_address(self._retriever_spec):
            self.corpus()  # at once, not at the first reset

    @classmethod
    def task_table(cls) -> TaskTable:
        """The questions that are in the cache, under AgentGym's data indices."""
        return real.real_table()

    @classmethod
    def data_hash(cls) -> str:
        """Hash of questions and corpus, and the version of this text."""
        return f"{real.real_hash()}, {_TEXT_VERSION}"

    @classmethod
    def question_of(cls, task: Task) -> Question:
        """Return the question of a task."""
        return real.real_question(task.index)

    @classmethod
    def corpus(cls) -> Path:
        """Return the folder of the Wikipedia corpus."""
        return real.real_corpus()


def make(source: str = "embedded", **options: Any) -> DeepSearchEnv:
    """Make a DeepSearch environment; the registered ids call this.

    Args:
        source: `"embedded"` for the questions and corpus of this package, `"real"` for those that
            `agentgym data deepsearch` fetches.
        options: As for `DeepSearchEnv`.

    Raises:
        ValueError: If an argument is not accepted, or the real data are missing.
        TypeError: If an option is unknown.
    """
    accepted = [
        name
        for owner in (DeepSearchEnv, TextEnv)
        for name, parameter in inspect.signature(owner).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise TypeError(f"DeepSearch: unknown option {unknown[0]!r}; accepted are source, {', '.join(accepted)}.")
    if source == "embedded":
        return EmbeddedDeepSearchEnv(**options)
    if source == "real":
        return RealDeepSearchEnv(**options)
    raise ValueError(f"DeepSearch: unknown source {source!r}; accepted are 'embedded' and 'real'.")


def _is_address(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))
