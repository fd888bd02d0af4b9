#!/usr/bin/env python3
"""Renders a chat template (Jinja) as transformers does, and marks the characters that the template itself wrote.

Reads a JSON object from standard input:

    template                 text of the template
    messages                 list of {"role", "content", ...}
    tools, documents         as templates expect them; optional
    add_generation_prompt    bool
    special_tokens           {"bos_token": text, "eos_token": text, ...}
    time                     "2026-11-23T18:00:00", formatted by strftime_now(); optional
    kwargs                   additional variables, such as {"enable_thinking": false}

and writes a JSON object to standard output: {"parts": [[text, is_template], ...]}, or {"error": "one line"}.

Template text is only the text that the template itself wrote: literals, special tokens, and the usual roles of
messages. All other text, including JSON and dates, is message text. Control tokens in message text are ordinary text.
The class Text is a str that stores the origin of each character. The operations of Text pass these origins on to their
results. Literals become Text objects. An operation that Text does not know returns a plain str. A plain str counts as
message text, so nothing becomes a control token by mistake. The rendered text always equals the output of plain jinja2
(tests/project/chat_template_test.py).

Templates come from untrusted files, so jinja2's sandbox keeps them away from the system. Arguments limit this process:

    chat_template.py [SECONDS MIB]           processor time and memory
    chat_template.py --loop SECONDS MIB      the same, with the time limit for each request

With --loop, standard input has one request per line, and the answers are written in the same order, one per line.
"""
import datetime
import functools
import json
import os
import re
import resource
import string
import sys

try:
    import jinja2
    import jinja2.compiler
    import jinja2.ext
    import jinja2.nodes
    import jinja2.runtime
    import jinja2.sandbox
except ImportError:
    SYSTEM = "/usr/bin/python3"  # Debian installs jinja2 only for this Python, but PATH may select another Python
    if __name__ == "__main__" and os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
        os.execv(SYSTEM, [SYSTEM, "-I", *sys.argv])
    print(json.dumps({"error": f"cannot be rendered: {sys.executable} has no jinja2", "remedy": "install python3-jinja2"}))
    sys.exit(0)

LONGEST_OUTPUT = 16 << 20  # number of characters
LONGEST_TEMPLATE = 1 << 20
ROLES = {"system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "environment"}
FORMATTER = string.Formatter()
NO_SPACE = re.compile(r"\S")
OWN, FOREIGN = b"\1", b"\0"  # OWN: the template wrote the character; FOREIGN: any other origin


class TooLong(Exception):
    pass


class Clock:
    """The time that templates see. Compiled templates are kept, so each request sets the clock."""
    now = datetime.datetime.now()

    def strftime(self, text):
        return self.now.strftime(text)


CLOCK = Clock()


class Text(str):
    """A str with a mask: OWN or FOREIGN for each character. Templates cannot reach the mask, because its name begins with _."""
    __slots__ = ("_mask",)

    def __new__(cls, text="", mask=None):
        self = super().__new__(cls, text)
        self._mask = FOREIGN * len(self) if mask is None else mask
        return self

    def _cut(self, begin, end):
        return Text(str.__getitem__(self, slice(begin, end)), self._mask[begin:end])

    def _same(self, text):
        """Keeps the mask if `text` has the same length, because each character was then changed separately."""
        return Text(text, self._mask) if len(text) == len(self) else text

    def __str__(self):
        return self

    def __getitem__(self, key):
        mask = self._mask[key]
        return Text(super().__getitem__(key), bytes([mask]) if isinstance(mask, int) else mask)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __add__(self, other):
        # The class of `other` implements the operator. Markup escapes the text. Undefined raises an error.
        if hasattr(other, "__html__") or isinstance(other, jinja2.Undefined):
            return NotImplemented
        return joined((self, other)) if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other):
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count):
        text = super().__mul__(count)
        return text if text is NotImplemented else Text(text, self._mask * count)

    __rmul__ = __mul__

    def strip(self, characters=None):
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters=None):
        return self._cut(len(self) - len(super().lstrip(characters)), len(self))

    def rstrip(self, characters=None):
        return self._cut(0, len(super().rstrip(characters)))

    def removeprefix(self, prefix):
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix):
        return self._cut(0, len(self) - len(suffix) if self.endswith(suffix) else len(self))

    def split(self, sep=None, maxsplit=-1):
        out, place = [], 0
        for piece in super().split(sep, maxsplit):
            if sep is None:
                place = NO_SPACE.search(self, place).start()
            out.append(self._cut(place, place + len(piece)))
            place += len(piece) + len(sep or "")
        return out

    def rsplit(self, sep=None, maxsplit=-1):
        pieces = super().rsplit(sep, maxsplit)
        if sep is None:
            return pieces
        out, end = [], len(self)
        for piece in reversed(pieces):
            out.append(self._cut(end - len(piece), end))
            end -= len(piece) + len(sep)
        return out[::-1]

    def splitlines(self, keepends=False):
        out, place = [], 0
        for line, bare in zip(super().splitlines(True), super().splitlines(keepends)):
            out.append(self._cut(place, place + len(bare)))
            place += len(line)
        return out

    def partition(self, sep):
        place = self.find(sep)
        if place < 0:
            return self, "", ""
        return self._cut(0, place), self._cut(place, place + len(sep)), self._cut(place + len(sep), len(self))

    def rpartition(self, sep):
        place = self.rfind(sep)
        if place < 0:
            return "", "", self
        return self._cut(0, place), self._cut(place, place + len(sep)), self._cut(place + len(sep), len(self))

    def replace(self, old, new, count=-1):
        if not old:
            return super().replace(old, new, count)
        return Text.join(new if isinstance(new, Text) else Text(new), self.split(old, count)) if count else self

    def join(self, pieces):
        out = []
        for piece in pieces:
            out += (self, piece) if out else (piece,)
        if not all(isinstance(piece, str) for piece in out):
            return super().join(out)  # raises the TypeError of str.join()
        return joined(out)

    @property
    def format(self):
        """Formats fields such as {} and {name} with a mask. The sandbox formats all other texts, without a mask."""
        fields = [field for field in FORMATTER.parse(self) if field[1] is not None]
        plain = all(re.fullmatch(r"\w*", name) and not spec and not conversion for _, name, spec, conversion in fields)
        if not plain or FOREIGN in self._mask:
            return super().format
        return functools.partial(self._format, FORMATTER.parse(self))

    def _format(self, fields, *args, **kwargs):
        text, pieces, next_one = str.format(self, *args, **kwargs), [], 0
        for literal, name, _, _ in fields:
            pieces.append(own(literal))
            if name == "":
                name, next_one = str(next_one), next_one + 1
            if name is not None:
                pieces.append(str(args[int(name)] if name.isdigit() else kwargs[name]))
        made = joined(pieces)
        return made if made == text else text

    def lower(self):
        return self._same(super().lower())

    def upper(self):
        return self._same(super().upper())

    def title(self):
        return self._same(super().title())

    def capitalize(self):
        return self._same(super().capitalize())


def joined(pieces):
    """Concatenates Text objects and other strings. Raises TooLong if the result is too long."""
    pieces, total = list(pieces), 0
    texts, masks = [], []
    for piece in pieces:
        total += len(piece)
        if total > LONGEST_OUTPUT:
            raise TooLong
        texts.append(piece)
        masks.append(piece._mask if isinstance(piece, Text) else FOREIGN * len(piece))
    return Text("".join(texts), b"".join(masks))


def concat(pieces):
    """Calls joined() for the pieces of a generator. Raises TooLong as soon as the text is too long."""
    total, kept = 0, []
    for piece in pieces:
        total += len(piece)
        if total > LONGEST_OUTPUT:
            raise TooLong
        kept.append(piece)
    return joined(kept)


@functools.lru_cache(maxsize=4096)
def own(text):
    """A Text with the origin OWN: the template wrote it."""
    return Text(text, OWN * len(text))


def code_of(value):
    """Returns Python code for a constant of a template. All strings in the constant have the origin OWN."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return f"environment.own({str.__repr__(value)})"
    if isinstance(value, (list, tuple)):
        items = "".join(code_of(item) + ", " for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{code_of(key)}: {code_of(item)}" for key, item in value.items()) + "}"
    return str(value) if isinstance(value, float) else repr(value)


class CodeGenerator(jinja2.compiler.CodeGenerator):
    def visit_Const(self, node, frame):
        self.write(code_of(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node, frame):
        self.write(code_of(node.as_const(frame.eval_ctx)))

    def _output_const_repr(self, group):
        return code_of("".join(group))


class Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which marks text for training and has no effect here."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def make_environment(time):
    """Makes an environment as transformers does. Templates may also change lists: many use `append` and `pop`."""
    environment = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                      extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = to_json
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def make_tracking_environment(time):
    environment = make_environment(time)
    environment.code_generator_class = CodeGenerator
    environment.concat = concat
    environment.own = own
    plain_join = environment.filters["join"]

    # pylint: disable-next=keyword-arg-before-vararg
    @jinja2.pass_eval_context
    def join(eval_context, value, d="", attribute=None):
        if hasattr(d, "__html__"):
            return plain_join(eval_context, value, d, attribute)
        if attribute is not None:
            value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
        return Text.join(d if isinstance(d, Text) else Text(str(d)), map(str, value))

    environment.filters["join"] = join
    return environment


def variables_of(request, mark=own):
    """Returns the variables for a template. `mark`: function that marks text as written by the template."""
    messages = [dict(message) for message in request["messages"]]
    for message in messages:
        if message.get("role") in ROLES:
            message["role"] = mark(message["role"])
    tokens = {name: mark(text) for name, text in request.get("special_tokens", {}).items()}
    return {"messages": messages, "tools": request.get("tools"), "documents": request.get("documents"),
            "add_generation_prompt": request.get("add_generation_prompt", False), **tokens, **request.get("kwargs", {})}


def time_of(request):
    return datetime.datetime.fromisoformat(request["time"]) if request.get("time") else datetime.datetime.now()


def parts_of(text):
    """Divides a text into pieces with one origin (True: template): [["<|user|>", True], ["hello", False]]. Each
    surrogate pair becomes its character, and each lone surrogate becomes U+FFFD."""
    mask = text._mask if isinstance(text, Text) else FOREIGN * len(text)
    pieces = ((str.__getitem__(text, slice(*run.span())), run[0][0] == 1) for run in re.finditer(b"\1+|\0+", mask))
    return [[whole(piece), is_own] for piece, is_own in pieces]


def whole(text):
    """Replaces lone surrogates, which are not allowed in JSON text."""
    return str(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@functools.lru_cache
def compiled(template):
    if len(template) > LONGEST_TEMPLATE:
        raise TooLong
    # Compiled templates call this function by name for the operator `~`.
    jinja2.runtime.str_join = lambda pieces: concat(map(str, pieces))
    return make_tracking_environment(CLOCK).from_string(template)


def with_empty_tools(request):
    """Adds an empty list of tools and a date to a request, for templates that need functions. Returns None if
    `request` has tools.
    """
    if request.get("tools"):
        return None
    given = {"functions": "[]", "datetime": time_of(request).strftime("%Y-%m-%d"), **request.get("kwargs", {})}
    return {**request, "tools": [], "kwargs": given}


def with_system_in_question(request):
    """Moves the system prompt of a request into the first question, for templates that refuse system prompts.
    Returns None if the request has no system prompt."""
    first = request["messages"][:2]
    contents = [message.get("content") for message in first]
    if [message.get("role") for message in first] != ["system", "user"] or not all(isinstance(c, str) for c in contents):
        return None
    return {**request, "messages": [{**first[1], "content": "\n\n".join(contents)}, *request["messages"][2:]]}


def with_parts(request):
    """Returns a copy of a request in which the content of each message is a list of parts."""
    def in_parts(message):
        content = message.get("content")
        return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
    return {**request, "messages": [in_parts(message) for message in request["messages"]]}


def wants_parts(template, request):
    """Whether the template prints a message only if its content is a list of parts, as some templates for images do."""
    text = "probe of the content format"
    question = {**request, "messages": [{"role": "user", "content": text}]}

    def shows(asked):
        try:
            return text in template.render(variables_of(asked))
        except Exception:  # pylint: disable=broad-exception-caught  # the template may still accept the real conversation
            return False
    return not shows(question) and shows(with_parts(question))


def render(request):
    """Renders the prompt. If the template fails, renders the prompt again with a changed request."""
    template = compiled(request["template"])
    CLOCK.now = time_of(request)
    if wants_parts(template, request):
        return parts_of(template.render(variables_of(with_parts(request))))
    try:
        return parts_of(template.render(variables_of(request)))
    except jinja2.exceptions.SecurityError:
        raise
    except (TypeError, jinja2.exceptions.UndefinedError) as error:
        is_about_tools = isinstance(error, TypeError) or "functions" in str(error)
        first_error, other = error, with_empty_tools(request) if is_about_tools else None
    except jinja2.exceptions.TemplateError as error:
        first_error, other = error, with_system_in_question(request)
    if other:
        try:
            return parts_of(template.render(variables_of(other)))
        except Exception:  # pylint: disable=broad-exception-caught  # the first error is reported
            pass
    raise first_error


def one_line(error):
    return whole(" ".join(str(error).split())) or type(error).__name__


def limit_process(seconds, mebibytes):
    limit_time(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(seconds):
    """Limits the processor time that this process may use from now on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds, hard))


def answer_to(text):
    """Returns the answer to a request in JSON as one line. ASCII does not depend on the locale and can represent lone
    surrogates."""
    try:
        return json.dumps({"parts": render(json.loads(text))})
    except jinja2.exceptions.TemplateSyntaxError as error:
        reason = f"is not valid Jinja: {one_line(error.message)} (line {error.lineno})"
    except jinja2.exceptions.SecurityError as error:
        reason = f"is not allowed to do this: {one_line(error)}"
    except jinja2.exceptions.UndefinedError as error:
        reason = f"fails: {one_line(error)}"
    except jinja2.exceptions.TemplateError as error:
        reason = f"refuses the conversation: {one_line(error)}"
    except TooLong:
        reason = f"is longer than 1 MiB or prints more than {LONGEST_OUTPUT >> 20} MiB"
    except MemoryError:
        reason = "takes too much memory"
    except RecursionError:
        reason = "is nested too deeply"
    except Exception as error:  # pylint: disable=broad-exception-caught  # templates may raise any exception
        reason = f"fails: {type(error).__name__}: {one_line(error)}"
    return json.dumps({"error": reason})


def answer_all(seconds):
    """Answers each line of standard input until its end."""
    for line in sys.stdin.buffer:
        limit_time(seconds)
        sys.stdout.write(answer_to(line) + "\n")
        sys.stdout.flush()


def main():
    loops = sys.argv[1:2] == ["--loop"]
    limits = [int(argument) for argument in sys.argv[1 + loops:]]
    if limits:
        limit_process(*limits)
    if loops:
        answer_all(limits[0])
    else:
        sys.stdout.write(answer_to(sys.stdin.read()))


if __name__ == "__main__":
    main()
