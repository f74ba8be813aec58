"""From conversation to tokens, without ever tokenizing a reply a second time.

A trajectory grows by appending: prompt, sampled reply, glue and observation, sampled reply, ... What
stands between a reply and the next one comes from the tokenizer's own chat template. It is found once
per tokenizer by rendering a probe conversation, so no template is written down here.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

_REPLY = "REPLY-7f3a"
_OBSERVATION = "OBSERVATION-c41d"
_INSTRUCTION = "INSTRUCTION-9be2"


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot be used for append-only trajectories."""


class Chat:
    """Renders prompts and observations for one tokenizer.

    Attributes:
        end_of_turn: Token that ends a reply. The policy samples it, so it is trained on.
        stop_tokens: Every token at which sampling stops (`end_of_turn` and the model's own end tokens).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_tokens: frozenset[int] = frozenset()) -> None:
        """Find the glue of the tokenizer's chat template.

        Args:
            tokenizer: Any Hugging Face tokenizer with a chat template.
            stop_tokens: End tokens that the model's generation config names beside the template's.

        Raises:
            ChatTemplateError: If there is no template, it rewrites earlier turns, or it does not end a
                reply with one token of its own.
        """
        if not tokenizer.chat_template:
            raise ChatTemplateError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template, and prompts are rendered with it. "
                "Use an instruct model, or name a Jinja template file with model.chat_template."
            )
        self.tokenizer = tokenizer
        self._special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._before, self._after, ending = self._find_glue()
        ending_tokens = self._encode(ending)
        if not ending_tokens or ending_tokens[0] not in tokenizer.all_special_ids:
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path!r} ends a reply with {ending!r}, which does not start "
                "with a special token, so the policy could not end its turn. Name a template that does with "
                "model.chat_template."
            )
        self.end_of_turn = ending_tokens[0]
        self._before = self._before.removeprefix(str(tokenizer.decode([self.end_of_turn])))
        self.stop_tokens = stop_tokens | {self.end_of_turn}

    def prompt(self, instruction: str, observation: str) -> list[int]:
        """Return the tokens up to the first reply.

        Args:
            instruction: What the agent may do; the system message. Empty leaves the message out.
            observation: The task statement; the first user message.
        """
        if not instruction:
            before, _, after = self._render([("user", _OBSERVATION)], reply_follows=True).partition(_OBSERVATION)
            return self._encode_around([before, after], [observation])
        text = self._render([("system", _INSTRUCTION), ("user", _OBSERVATION)], reply_follows=True)
        before, _, rest = text.partition(_INSTRUCTION)
        between, _, after = rest.partition(_OBSERVATION)
        return self._encode_around([before, between, after], [instruction, observation])

    def after_reply(self, observation: str, ended: bool) -> list[int]:
        """Return the tokens between a sampled reply and the next one; none of them is trained on.

        Args:
            observation: The environment's answer.
            ended: Whether the reply's last sampled token is a stop token. If not, the turn is ended here.
        """
        glue = self._encode_around([self._before, self._after], [observation])
        return glue if ended else [self.end_of_turn, *glue]

    def reply(self, text: str) -> list[int]:
        """Return the tokens of a reply that a teacher gives, its end-of-turn token included."""
        return [*self._encode(text), self.end_of_turn]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of sampled tokens without special tokens."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _find_glue(self) -> tuple[str, str, str]:
        # The reply holds a think block: templates that strip those from earlier turns rewrite history.
        reply = f"<think>\nprobe\n</think>\n\n{_REPLY}"
        opening = [("system", "s"), ("user", "u")]
        one_turn = [*opening, ("assistant", reply)]
        next_turn = [*one_turn, ("user", _OBSERVATION)]
        prompt = self._render(opening, reply_follows=True)
        two = self._render(next_turn, reply_follows=True)
        three = self._render([*next_turn, ("assistant", reply), ("user", _OBSERVATION)], reply_follows=True)
        begins = two.startswith(prompt) and two[len(prompt) :].startswith(reply)
        if not begins or not three.startswith(two):
            raise ChatTemplateError(
                f"the chat template of {self.tokenizer.name_or_path!r} rewrites earlier turns (for instance by "
                "removing their reasoning), so what the policy sampled would not be what it is trained on. Name a "
                "template that keeps every turn as it was with model.chat_template."
            )
        glue = two[len(prompt) + len(reply) :]
        before, found, after = glue.partition(_OBSERVATION)
        opened = self._render([("system", _INSTRUCTION), ("user", _OBSERVATION)], reply_follows=True)
        shown = opened.count(_INSTRUCTION) == opened.count(_OBSERVATION) == 1
        if not found or not shown or opened.index(_INSTRUCTION) > opened.index(_OBSERVATION):
            raise ChatTemplateError(
                f"the chat template of {self.tokenizer.name_or_path!r} does not show the system message and then the "
                "user's as they are; name another one with model.chat_template."
            )
        return before, after, before

    def _render(self, messages: list[tuple[str, str]], reply_follows: bool) -> str:
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=reply_follows)
            )
        except Exception as error:  # Jinja errors have no common base across templates
            raise ChatTemplateError(
                f"the chat template of {self.tokenizer.name_or_path!r} refused a system, user, assistant, user "
                f"conversation ({error}). Name one that accepts it with model.chat_template."
            ) from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _encode_around(self, template: list[str], contents: list[str]) -> list[int]:
        """Encode a template with contents in its gaps. In the contents special tokens are mere characters.

        Environments quote what agents write, and nobody may end a turn by quoting.
        """
        for token in self._special:  # a zero-width space after its first character hides it from the tokenizer
            contents = [text.replace(token, f"{token[0]}\u200b{token[1:]}") for text in contents]
        pieces = [piece for pair in zip(template, [*contents, ""], strict=True) for piece in pair]
        return self._encode("".join(pieces))


def load_template(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Give the tokenizer the chat template in a Jinja file; an empty path changes nothing."""
    if not path:
        return
    if not Path(path).is_file():
        raise ChatTemplateError(f"model.chat_template={path!r} is no file; give the path of a Jinja chat template.")
    tokenizer.chat_template = Path(path).read_text(encoding="utf-8")
