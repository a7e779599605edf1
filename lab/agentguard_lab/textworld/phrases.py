"""Phrases of the scripted agent, by module and occasion, in the grammar of `grammar`. Plain data.

The values in braces come from the agent's beliefs, so a wrong belief has the same wording as a right one.
"""

from __future__ import annotations

MEMORY: dict[str, str] = {
    "here": (
        "[I'm|I am|Right now I'm|At the moment I'm|My position:|I stand|Currently I am] in the {room}"
        "[.|, by my map.| now.|; that much is clear.]"
    ),
    "carry": (
        "[I [carry|hold|have with me|am carrying|have in my hands]|In hand:|My inventory is|With me I have|"
        "Carried so far:|On me:] {items}[.|; nothing else.| at this point.]"
    ),
    "empty": (
        "[My hands are empty.|I carry nothing [yet|so far|at the moment].|Nothing in my inventory[ yet|].|"
        "I hold nothing.|Inventory: empty.]"
    ),
    "known": (
        "[I [saw|noticed|remember|recall|have noted]|Noted earlier:|From before:|I know of|My notes say:] "
        "the {item} [is |was |]{where}[.|, in case that's needed.| when I last looked.]"
    ),
    "unseen": (
        "[I [haven't found|have yet to find|still lack any trace of|don't know the whereabouts "
        "of]|Not located yet:|"
        "Still missing:|No sighting so far of] {items}."
    ),
    "rooms": (
        "[Rooms seen [so far|until now]:|I've been through|My map [has|shows|covers]|Visited:|"
        "Places I know:] {rooms}[.|, that is all.]"
    ),
    "opened": (
        "[Already opened:|I have looked inside|Containers checked:|I've been through the "
        "contents of|Searched:] {items}."
    ),
    "keys": (
        "[The {door} [is locked and takes|needs|wants|opens only with] the {key}.|"
        "[Locked:|Still locked:] the {door}, [key:|which takes] the {key}.]"
    ),
    "left": (
        "[Left to do:|Still open:|Remaining [work|parts]:|The task [still asks for|leaves] this:|"
        "What's left by my list:] {todo}."
    ),
    "finished": (
        "[Already done:|Behind me:|Ticked off:|Completed [so far|until now]:|That part is done:] {done}."
    ),
    "rule": (
        "[The {name} [has to|must|should] be [shut|closed] [at the end|in the end|when I finish].|"
        "[Rule|Condition|Not to forget]: the {name} [stays|is to be left|ends up] closed.]"
    ),
    "recipe": (
        "[Recipe notes:|From the cookbook:|The directions I noted:|My notes of the recipe:|The "
        "page says:] {steps}."
    ),
}

REFLECTION: dict[str, str] = {
    "arrived_new": (
        "[So this is|I've reached|That took me to|This is|I came into|Now I see|The move brought "
        "me to] the {room}"
        "[: {sight}.|, with {sight}.|. [It has|I notice|I can make out|There's] {sight}.]"
    ),
    "arrived_back": (
        "[Back in|I'm in|Returned to|Once more] the {room}[, as expected.| again.|; nothing new "
        "in it.|, which I know already.|.]"
    ),
    "spotted": (
        "[And|Good:|Useful:|Better still,|I see|Here [is|I spot]|There's|I notice] {items} "
        "{where}[, which I need.|; "
        "that's on my list.|, just what I was after.|, and the task calls for it.]"
    ),
    "nothing_here": (
        "[Nothing [here|in this room|in sight] [that I need|on my list|of use|I was looking for].|"
        "[What I need|The thing I'm after] [isn't|is not] [here|in view|lying about here].|No "
        "use for what lies here.]"
    ),
    "dead_end": (
        "[The way {way} [leads nowhere [useful|new]|is a dead end|has nothing for me].|"
        "[There's|I found] nothing [more |]to the {way}.|{way}, [that's|this is] a dead end.]"
    ),
    "opened": (
        "[The {target} [is open now|opened|stands open|gave way at once].|"
        "[Fine, |Good, |]the {target} [opened|is open].|I [have opened|opened] the {target}[ now|].]"
    ),
    "opened_empty": (
        "[The {target} [held|had|contained] nothing [useful|I need|of interest|for me].|"
        "[Nothing|No luck] in the {target}.|[I looked into|I checked|So much for] the {target}[: "
        "nothing| and found nothing] [I need|useful].]"
    ),
    "found_wanted": (
        "[Inside the {target} [I find|is|there's]|The {target} [held|had|contained]|There we "
        "are, in the {target}:|"
        "Opening the {target} paid off:] {found}."
    ),
    "found_other": (
        "[The {target} [only |]held {inside}[, no use to me|, not what I need|].|[Just |In "
        "there: |]{inside} in the {target}[.|, "
        "nothing I need.|; noted.]]"
    ),
    "took": (
        "[I have|Picked up|I took|I'm now holding|I've got|That gives me] the {target}[ now|][.| "
        "without trouble.|, good.]"
    ),
    "unlocked": (
        "[The lock [turned|gave|is undone]|Unlocked|The key fits|That unlocked the {target}][.|, "
        "so the way is free.|; next, opening it.]"
    ),
    "closed": (
        "[The {target} is [shut|closed][ again|]|Closed the {target}[ again|]|That takes care of "
        "the {target}][.|, as asked.]"
    ),
    "delivered": (
        "[The {target} is [where it belongs|in place|delivered|at its place now]|That's the "
        "{target} [done|delivered|taken care of]|"
        "I've set down the {target} where it goes][.|, one item less.|; good.]"
    ),
    "processed": (
        "[The {target} is [ready|done|as the recipe wants it]|That was the {target}|The {target} "
        "came out [well|right|as asked]|"
        "Done with the {target} for this direction][.|; on with the rest.|, one direction less.]"
    ),
    "prepared": (
        "[The meal is [put together|ready|prepared]|I hold a finished meal|That made the meal][.|"
        "; now to eat it.]"
    ),
    "inventory": (
        "[I know what I'm carrying[ now|].|The list [of what I hold |]is clear.|My pockets are "
        "checked.|So that's what I have.]"
    ),
    "recipe": (
        "[The recipe [needs|asks for|lists]|The page names|I need, by the cookbook,] {items}[.|;] "
        "[The directions are|To do|The steps|It wants me to]: {steps}."
    ),
    "examined": (
        "[Nothing special about|I looked at|That tells me little about|So much for|Noted how "
        "things stand with] the {target}."
    ),
    "refused": (
        '[The game answers|I got|It says|The reply was|Back came] "{says}"[. That did not work.|'
        "- so no effect.|, which means it failed.|"
        " and nothing changed.]"
    ),
    "tool_error": (
        "[The call [itself |]was [rejected|turned down|not accepted]|The tool [returned an error|"
        "did not accept that]|"
        'An error instead of a result|That call never reached the house][.|: "{says}"|, so nothing happened.]'
    ),
    "silent": (
        "[There was no answer at all.|The tool returned nothing.|An empty result; I can't tell "
        "what happened.|No output came back.]"
    ),
    "need_key": (
        "[It's locked; the {target} [needs|takes|wants]|Locked. For the {target} I need|So the "
        "{target} is locked and asks for|"
        "The {target} won't open without] the {key}."
    ),
    "shut": (
        "[The {target} is [closed|shut], I have to open it first.|I walked into the closed "
        "{target}.|First the {target} has to be opened.]"
    ),
    "holder_closed": (
        "[The {target} is [closed|shut], so it must be opened first.|I can't put things into a "
        "closed {target}.]"
    ),
    "again": (
        "[I'll try [once more|again|another time].|[Perhaps|Maybe] [a second attempt helps|it "
        "works the next time].|Once more, then.]"
    ),
    "give_up": (
        "[It [won't|will not|doesn't] work, so|There's no point in insisting;|I've seen enough:|"
        "Apparently it can't be done;|"
        "That seems beyond repair;] I [leave|drop|set aside|give up on] the {what}[.| and go on "
        "without it.| and look for another way.]"
    ),
    "corrected": (
        "[My mistake, [the call was wrong|I wrote it badly|that was badly put].|I [see|noticed] "
        "[the mistake|what was wrong with my call].|"
        "I should write that call properly.]"
    ),
    "noticed": (
        "[Wait,|Hold on,|Strange:|Hm,] [that contradicts my notes|I had that wrong|my notes were "
        "off] [about|on] the {item}."
    ),
    "progress": (
        "[Progress: {done} of {all} [parts|items|things] [done|settled].|[So far|By now] {done} "
        "of {all} [are|have been] done.|"
        "That makes {done} out of {all}.|[I'm at|I stand at|Tally:] {done} of {all}.]"
    ),
    "ready": (
        "[That [was|is] everything[ on my list|].|Nothing is left on my list.|All that was asked "
        "is done[, as far as I see|].|By my count the task is complete.]"
    ),
}

PLANNING: dict[str, str] = {
    "start": (
        "[First|To begin with|Before anything else|As a start] I [want to see|need to know|"
        "should find out] where I am[ and what I have|]."
    ),
    "go:explore": (
        "[I haven't been {way} [yet|so far], so that's next.|I'll see what lies {way}.|"
        "Unexplored: {way}. [Going there.|I go there.]|"
        "[On to|Next:|I'll try] the {way}.|I continue [the search|looking] {way} of here.|"
        "There's a blank spot on my map to the {way}.]"
    ),
    "go:back": (
        "[Nothing further here, so back {way}|I go {way} again, towards [what I haven't seen|"
        "unexplored parts]|"
        "To reach an exit I haven't tried I go {way}|Retracing my steps {way}][.| for now.]"
    ),
    "go:seek": (
        "[I have what I came for, now I need to find|Next I look for|What I lack is the way to|I "
        "still have to find] the {rest}[; |, so ][{way}"
        " it is|I try {way}]."
    ),
    "go:lock": (
        "[With the key|Now that I have the key|Key in hand,] I go {way}[, to the lock.|, towards "
        "the locked door.|.]"
    ),
    "go:deliver": (
        "[The destination is [to the |]{way}|To deliver this I go {way}|I carry it {way}|The "
        "shortest way to the target [starts|is] {way}][.|, by my map.]"
    ),
    "go:fetch": (
        "[I know where the {rest} is;|The {rest} is my next stop:|To get the {rest}|For the "
        "{rest}] [I go|the way is|head] {way}[.|, as my map has it.]"
    ),
    "go:cookbook": (
        "[Back {way}, to the cookbook.|The cookbook is {way} of here.|I need the cookbook, so {way}.]"
    ),
    "go:recipe": (
        "[The next direction [needs|takes] an appliance {way} of here.|I go {way} to cook.|For "
        "the heat I go {way}.]"
    ),
    "go:meal": (
        "[The meal is put together in the kitchen, so {way}.|To the kitchen: {way}.|I head "
        "{way}, to the kitchen.]"
    ),
    "go": "[I go|I'll walk|Going|The plan is to go|Next I move] {way}[.| now.|, then see.]",
    "open:search": (
        "[The {object} may [hold|hide] something|Worth a look inside the {object}|I should check "
        "the {object}[ while I'm here|]|"
        "What's in the {object}? I'll open it|Let me open the {object}][.|, just in case.]"
    ),
    "open": (
        "[I have to open|First I open|Opening|The next thing is to open|I need to get through, "
        "so I open] the {object}."
    ),
    "close": (
        "[I [shut|close]|The rule says to close|Before I go on I close|Closing] the {object}[.| "
        "again.|, as the task wants it.]"
    ),
    "unlock": (
        "[With|Having] the {key}[,|] [I'll unlock|I can try|let me undo] the {object}[ now|"
        "][.|, that should do.]"
    ),
    "take": (
        "[I'll take|I pick up|Taking|The next thing is to take|I want] the {object}[.| now.| "
        "along.|, before moving on.]"
    ),
    "put": (
        "[I put|I set|Now to put|The {object} goes:|I place] the {object} on the {place}[.|, as "
        "the task says.|, where it belongs.]"
    ),
    "examine:recipe": (
        "[I read the cookbook[ now|].|The recipe comes first.|Let me see what the cookbook says.|"
        "Time to look at the recipe.]"
    ),
    "examine": (
        "[Let me [look closely at|examine|study]|I take a closer look at|I'd like to inspect|"
        "Before going on I examine] the {object}[.| first.|, to be thorough.]"
    ),
    "cook": (
        "[Next direction:|Now the heat:|The recipe wants|I do this now:] the {object} [on|with] "
        "the {appliance}[.|, once.]"
    ),
    "cut": (
        "[I {how}|Next direction: {how}|The recipe says to {how}|With the knife I {how}] the "
        "{object}[.| now.]"
    ),
    "prepare_meal": (
        "[Everything is ready for the meal.|All directions are done, so I prepare the meal.|I "
        "put the meal together.|Now I make the meal.]"
    ),
    "eat": (
        "[Only eating is left.|I eat the {object}.|The last thing is to eat the {object}.|Now I eat it.]"
    ),
    "look": (
        "[I look around [again|once more|here].|Let me see the room [again|once more].|A look "
        "around, to be sure.]"
    ),
    "inventory": (
        "[I check what I [carry|really hold|have].|Let me go through my inventory.|A check of "
        "what I'm holding.]"
    ),
    "claim": (
        "[Everything [is in place|has been done]|All [parts are|that was asked is] done|Nothing "
        "is left on my list][.|, so I stop here.|. The task is complete.]"
    ),
    "stuck": (
        "[I [see no way to go on|have run out of options|don't know what else to try]|Nothing is "
        "left that I could try|I have been through everything I can reach]"
        "[.|, so I stop here.|; the task is not done.]"
    ),
}

ACTION: dict[str, str] = {
    "call": "[Call|Action|I call|Now|Next call|Doing|Tool|So]: {call}[.|]",
    "none": "[No further call.|I end here.|Done.|No action.|This is my last message.]",
}
