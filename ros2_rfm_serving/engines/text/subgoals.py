"""Rules of a subgoal: a robot may execute it, and it does not read like a thought, an apology or a statement.

The words are English and of a few other languages. The rules hold for plans without a schema, and again for the texts within one.
"""

from __future__ import annotations

import re

from ros2_rfm_serving.engines import reasoning

MAX_SUBGOAL_CHARACTERS = 300


class UnreadablePlan(ValueError):
    """Reason why a text is no plan; it never holds the text."""


_LABELS = (
    "thoughts?|thinking|reason(?:ing)?|analysis|observation|rationale|explanation|notes?|user|assistant|system|task"
    "|errors?|warning|exception|traceback|remember|double-check"
    "|(?:[\\w-]+ ){0,2}(?:state|status|situation|scene|goal|plan|answer|output|result|conclusion|summary|context|images?)"
)
_HESITATIONS = "so|but|yes|no|ok|actually"
_MORE_HESITATIONS = "okay|hmm+|well|alright|maybe|perhaps|however|therefore|thus|sure|certainly|sorry"
_DESPAIR = (
    "unable|cannot|can't|could not|not sure|unclear|unfortunately|apolog(?:y|ies|i[sz]e)|my apologies|thanks?|you're welcome|got it"
    "|understood|seems|looks like|appears|given|since|because|considering|based on|as an ai|currently|think|analysis|that's all"
    r"|to-?do|etc|e\.g\.|i\.e\.|step[- ]by[- ]step|the (?:first|next|last|final) (?:step|sub-?goal|action)"
    "|need to|probably|consider(?:ing)?|analy[sz]e|understand|interpret|brainstorm|recall|hm|generate|to accomplish this"
    "|internal server error|rate limit|service unavailable|bad gateway|gateway time-?out|too many requests|model not found"
)
_OF_A_SPEAKER = "need|should|will|think|must|have|can|could|cannot|can't|am|are|see|would|want|know|do|don't"
_OF_A_USER = (
    "is|was|wants?|wanted|asks?|asked|needs?|says?|said|would|has|wishes|requests?|requested|instruct(?:s|ed)|told|gave|mention(?:s|ed)"
    "|provided|expects?|seems|might|may|just|also"
)
_SUBJECTS = "task|goal|request|instruction|prompt|plan|images?|cameras?|picture|history|robot"
_CHECKS = (
    "ensure|make sure|verify|check|confirm|see|wait|hold|keep|watch|inspect|test|leave|determine|monitor|observe|detect|find|look"
    "|ask"
)
_CONJUNCTIONS = "until|that|if|whether|when|while|what|which|where|who|how|once|so|as|because|before|after|unless"
_BEFORE_A_CLAUSE = ("until", "that", "if", "whether", "when", "while", "what", "which", "where", "once", "sure", "ensure")
_SUBORDINATE = "".join(f"(?<!{word} )" for word in _BEFORE_A_CLAUSE)
_USERS_ELSEWHERE = (
    "用户(?:想|要|希望|需要|让|说|请求|的)|嗯|我(?:需要|应该|们|要|会|想)|让我|ユーザー(?:は|が)|사용자(?:는|가)"
    "|usuario (?:quiere|pide|desea|necesita)|utilisateur (?:veut|demande|souhaite)|nutzer (?:möchte|will|wünscht|bittet)"
    "|usuário (?:quer|pede|deseja)|пользователь (?:хочет|просит)"
)
"""Beginnings of thoughts of models that think in the language of their makers or of their users."""
THOUGHT = re.compile(
    rf"^(?:{_HESITATIONS})(?:[,.!:;]|\s+(?:the|i|we|let|so|this|that|it|there)\b|$)|^(?:{_MORE_HESITATIONS})\b"
    r"|^wait(?:[,!:;]|\.\s+\S|\s+(?:the|i|we|so|this|that|it|there)\b)"
    rf"|^(?:{_LABELS})\s*:|^(?:{_DESPAIR})(?!\w)"
    r"|^(?:null|true|false|undefined|error|safe|unsafe|ongoing|failed|\[object object\])[.!]*$"
    rf"|(?:^|[,.;:]\s*)(?:\w+ )?(?:the )?user (?:{_OF_A_USER})\b"
    r"|\buser's (?:request|instruction|task|goal|intent(?:ion)?|question|message|prompt|query)\b"
    r"|\b(?:let me|let's|let us|step by step)\b"
    rf"|\b(?:i|we|you)(?:'(?:m|ll|ve|d|re)|\s+(?:{_OF_A_SPEAKER}))\b"
    rf"|{_SUBORDINATE}\bthe (?:{_SUBJECTS}) (?:is|are|was|says?|shows?|asks?|wants?|seems?|states?|needs?|should|has|must)\b"
    rf"|^.{{0,12}}(?:{_USERS_ELSEWHERE})"
    r"|\?$",
    re.IGNORECASE,
)
"""Words of thoughts, apologies and explanations that no imperative begins with or holds."""
_STATEMENT = re.compile(
    rf"^(?!(?:{_CHECKS})\b)(?:(?!(?:{_CONJUNCTIONS})\b)[\w'-]+ ){{1,5}}(?:is|are|was|were)\b"
    r"|^(?:the|an?|this|that|both|all|each|cameras?|robot)\s(?:(?!to\b)[\w'-]+ ){0,3}"
    r"(?:has|have|seems?|looks?|appears?|wants?|needs?|shows?|holds?|must|should|can|could|would|will|might|requires?|contains?|means?)\b"
    r"|^(?:i|it|there|he|she|they|we|you)\b",
    re.IGNORECASE,
)
_PRONOUNS = "the|a|an|this|that|these|those|there|it|its|it's|i|we|you|he|she|they|my|our|his|her|their|your"
_OPENINGS = "as|although|though|looking|seeing|judging|assuming|analy[sz]ing|understanding"
_QUESTIONS = "which|what|why|how|who|where|is|are|was|were|has|have|please note"
NO_IMPERATIVE = re.compile(
    rf"^(?:{_PRONOUNS}|{_OPENINGS}|{_QUESTIONS}|(?:in|from|on) the (?:image|picture|photo|scene|camera)s?)\b"
    r"|^[\d#]|[。\uff01\uff1f]\s*\S",
    re.IGNORECASE,
)
"""Words with which a statement or a question begins. No line may, unless a list or a schema marks it as a subgoal."""
CODE = re.compile(
    r"[{}|\\`]|[<>](?!\s?\d)|\w\(|=|;\s*$|^\s*(?:import [\w.]+$|from [\w.]+ import\b|def \w+\(|class \w+\s*[(:]|return\s*$)"
)
_SEVERAL = re.compile(
    r"\s\d{1,2}\.\s+\w|\s(?:\(2\)|2[):]|2\s+[-\u2013—])\s|\s\(?b\)\s|\s(?:sub-?goal|step|phase)\s*#?\s*2\b|\S\s*[→⇒➔•▪●]\s*\S",
    re.IGNORECASE,
)


def checked(subgoal: str) -> str:
    """Return a subgoal that may be executed. Raises: `UnreadablePlan` for any other text."""
    if len(subgoal) > MAX_SUBGOAL_CHARACTERS:
        raise UnreadablePlan(f"a subgoal has {len(subgoal)} characters, more than {MAX_SUBGOAL_CHARACTERS}")
    if not subgoal.isprintable():  # half a character of JSON (`\\ud800`) cannot be sent, and a NUL ends a message's text
        raise UnreadablePlan("a subgoal has characters that cannot be printed")
    if _SEVERAL.search(subgoal):
        raise UnreadablePlan("several subgoals stand in one")
    if reasoning.has_marks(subgoal):
        raise UnreadablePlan("marks of thoughts stand in a subgoal")
    if not any(letter.isalpha() for letter in subgoal):
        raise UnreadablePlan("a subgoal has no words")
    if THOUGHT.search(subgoal) or _STATEMENT.search(subgoal) or is_end(subgoal):
        raise UnreadablePlan("a subgoal reads like a thought, not like an imperative")
    return subgoal


NOTHING = re.compile(
    r"(?:nothing|none|(?:there (?:is|are) )?"
    r"(?:nothing(?: more| else| further)?|none|no(?: more| further| remaining)? (?:sub-?goals?|steps?|tasks?|actions?))"
    r"(?: (?:is|are))?(?: left| remaining| to do)?|n/?a|\(empty\)|all done"
    r"|(?:the )?(?:task|goal|plan) is (?:already )?(?:complete|completed|done|finished))[.!]*",
    re.IGNORECASE,
)
_END = re.compile(
    r"(?:(?:the )?(?:task|plan) )?(?:is )?(?:done|finished|completed?)[.!]*|end(?: of (?:the )?(?:plan|list|task))?[.!]*",
    re.IGNORECASE,
)
"""Last item that marks the end of a plan."""


def is_end(subgoal: str) -> bool:
    return bool(NOTHING.fullmatch(subgoal) or _END.fullmatch(subgoal))
