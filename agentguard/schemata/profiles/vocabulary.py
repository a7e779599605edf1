"""Closed list of the words in a schema: function words, and words for ways of working.

A text without its topic contains no other words. A word is in the list if it describes an action of a turn
(search, assume, verify, fail) and has the same meaning in any task. The list has no word for a possible
subject of a task, and no number word, since a number can identify the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_FUNCTION_TEXT: Final = """
a an the this that these those it its it's itself i i'm i've i'll i'd me my myself we we're we've we'll our
us ourselves you you're you've you'll your yours yourself they they're they've their them themselves who
whose whom which what whatever whether where when while why how he she his her and or but nor so yet if then
else unless until because since although though however therefore thus hence otherwise instead rather also
too as than such like not no none never neither nothing nobody nowhere without within with of at by for from
in into on onto to toward towards up down out off over under above below between among across through during
before after about against per via upon around along beyond besides except despite be am is are was were
been being isn't aren't wasn't weren't do does did done doing don't doesn't didn't have has had having
haven't hasn't hadn't can can't cannot could couldn't will won't would wouldn't shall should shouldn't may
might must mustn't need needn't let let's lets there here there's here's that's what's all any anything
anyone some something someone somewhere each every everything everyone both either several many much more
most few fewer less least other others another same different only just even still already again once ever
always often sometimes usually really quite very almost nearly now soon later earlier next last first
finally initially currently previously recently yes ok okay please thanks thank sorry unfortunately
"""

_VERB_TEXT: Final = """
accept access achieve acknowledge act adapt add address adjust admit affirm aim allow analyse analyze
announce answer apologize appear apply approach approximate ask assert assess assign assist assume attach
attempt avoid await base begin behave believe block break bypass calculate call cancel capture carry cause
change check choose cite claim clarify clear click close collect combine commit compare compile complain
complete comply compute conclude conduct confirm confuse connect consider consist consult contain continue
contradict contribute convert cooperate correct cover crash create cross-check debug decide declare decline
deduce define delegate delete deliver demonstrate deny depend derive describe detail detect determine
discover discuss display divide double-check download draw drop edit elaborate emphasize enable encounter
end ensure enter establish estimate evaluate examine exceed exclude execute exist exit expand expect explain
explore express extend extract fabricate face fail fetch fill filter finalize find finish fit fix focus
follow forget formulate gather generate get give go guarantee guess guide handle happen help hesitate
highlight hold hope identify ignore illustrate imagine implement imply import improve include incorporate
indicate infer inform initiate input inquire insert inspect install instruct intend interact interpret
interrupt introduce invent investigate invoke involve iterate keep know lack lead learn leave limit list
load locate look loop lose maintain make manage match mean measure meet mention miss mislead misread
misinterpret misunderstand modify monitor move navigate note notice obey obtain offer omit open operate
order organize outline output overlook parse pass perform persist pick plan point prepare present pretend
prevent print proceed process produce prompt propose prove provide pull push put query question raise reach
read realize reason recall receive recheck recognize recommend recompute reconsider record recover redo
reduce refer refine reflect refuse regard reject relate rely remain remember remind remove repair repeat
rephrase replace reply report represent request require rerun resolve respond rest restart restate result
retrieve retry return reveal review revise revisit rewrite rule run save say scan scrape scroll search see
seem select send set share show simplify simulate skip solve sort speak specify split stall start state stay
stop store structure stuck submit substitute succeed suffer suggest summarize supply support suppose suspect
switch take talk tell terminate test think track transfer translate treat trigger trust try turn type
understand undo update upload use validate verify view visit wait want warn wonder work write
"""

_IRREGULAR_FORMS: Final = """
began begun broke broken chose chosen drew drawn fell fallen felt forgot forgotten found gave given went
gone got gotten held kept knew known led left lost made meant met misread misunderstood put ran read rewrote
rewritten said saw seen sent set shown spoke spoken stuck taken took taught told thought tried tries
understood undid undone wrote written ran running getting setting putting stopping stopped planning planned
dropping dropped skipping skipped splitting admitted admitting committed committing submitted submitting
occurred referring referred inferring inferred preferred transferring transferred permitted permitting
permission omitted omitting fitting fitted scanning scanned begins beginning forgetting letting lies lying
lied applies applied implies implied relies relied replies replied specifies specified clarifies clarified
identifies identified verifies verified modifies modified simplifies simplified notified denies denied
retries retried queries queried carries carried
"""

_PROCESS_TEXT: Final = """
ability able absence absent accessible accordingly accuracy accurate accurately action actions actual
actually additional additionally agent agents agreement alternative alternatively alternatives ambiguity
ambiguous analysis analyses anyway api apology apparently appropriate approval approximate approximately
approximation argument arguments aspect assistance assumption assumptions attempt authoritative automatic
automatically available average aware back bad basis behaviour behavior best better block brief briefly
broad browser bug calculation calculations captcha capability careful carefully case cases caution certain
certainly challenge chance clarification clear clearly code column columns command comment common commonly
complete completely completion complex comprehensive conclusion conclusions condition conditions confidence
confident confirmation conflict conflicting connection consensus consequently consistent constraint
constraints content contents context contradiction conversation correct correction corrections correctly
correctness count criteria criterion critical current data database date deadline decision default
definitive definitely delay dependency dependent detail detailed details difference difficult difficulty
direct directly discrepancy discrepancies discussion document documentation documents double doubt draft due
duplicate easily easy effect effective effectively effort element elements empty end enough entire entirely
entries entry environment equation error errors essential estimate evidence exact exactly example examples
exception exceptions execution existing expected expert experts explanation explicit explicitly extra fact
facts factual failure failures fake false familiar fault faults feature feedback fictional fictitious field
fields figure file files final fine folder following format forward full fully function functions further
furthermore general generally generic given goal goals good great hallucination hand helpful hint history
hypothetical idea identifier impossible inability inaccessible inaccurate incomplete inconsistency
inconsistent incorrect incorrectly independent independently indirect information informed input inputs
insight instance instruction instructions insufficient interaction intermediate internet invalid irrelevant
issue issues item items iteration keyword keywords kind knowledge large length level library likely limit
limitation limitations line lines link links literal local location logic logical long low main maximum
maybe meaning meantime memory message messages method methods minimum minor misinterpretation missing
mistake mistakes misunderstanding mock module moment multiple name names namely necessarily necessary
network new nonexistent normal note objective obstacle obvious obviously old online operation opinion option
options original originally outcome outdated output outputs overall oversight page pages parameter
parameters part partial partially particular particularly past path pattern perfect perfectly perhaps
permission placeholder placeholders plan plausible point popular portion position possibility possible
possibly potential potentially precise precisely precision premature presence present presumably previous
primary prior probability probable probably problem problems procedure programming progress proof proper
properly provided publicly purpose python quality quick quickly quote random range rate raw ready real
reality reason reasonable reasonably reasoning record records recent reference references regarding relation
relevance relevant reliable remaining repeated repeatedly repetition representative requirement requirements
requested research resource resources respective response responses responsible restriction result results
retrieval right role row rows rough roughly sample satisfied satisfactory scenario scope screen script
section secondary sense separate sequence series server session short shortly significant similar similarly
simple simply simulation single site sites situation size small snippet solution solutions source sources
specific specifically specification stage standard statement status step steps straightforward strategy
string strong stuck sub-task subsequent subtask subtasks success successful successfully sufficient
suggestion suitable summary sum sure synthetic system table target task tasks team temporary term terms text
thing things third-party thorough thoroughly thought thoughts time timeout timely title together token
tokens tool tools top topic total traceback transcript true truth type typical typically typo unable unaware
unavailable uncertain uncertainty unclear undefined unexpected unknown unlikely unnecessary unreliable
unresolved unsuccessful unsupported unverified up-to-date url user users useful valid validity value values
variable variables various verbatim verification version video view warning way ways web website websites
well whole widely word words workaround wrong wrongly zero-shot
"""

_NUMBER_TEXT: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
billion trillion dozen half quarter twice thrice second third fourth fifth sixth seventh eighth ninth tenth
"""


def _inflect(verb: str) -> Iterator[str]:
    """Yield the regular forms of a verb; some of them may not exist."""
    stem = verb[:-1] if verb.endswith("e") else verb
    yield verb
    yield f"{stem}ing"
    if verb.endswith("y") and verb[-2] not in "aeou":
        yield from (f"{verb[:-1]}ies", f"{verb[:-1]}ied")
    else:
        yield from (f"{verb}es" if verb.endswith(("s", "sh", "ch", "x")) else f"{verb}s", f"{stem}ed")


NUMBER_WORDS: Final = frozenset(_NUMBER_TEXT.split())
FUNCTION_WORDS: Final = frozenset(_FUNCTION_TEXT.split())
PROCESS_WORDS: Final = frozenset(
    {form for verb in _VERB_TEXT.split() for form in _inflect(verb)}
    | set(_IRREGULAR_FORMS.split())
    | set(_PROCESS_TEXT.split())
)
WORDS: Final = (FUNCTION_WORDS | PROCESS_WORDS) - NUMBER_WORDS
"""All permitted words, in lower case."""
