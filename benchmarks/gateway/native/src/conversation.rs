//! Join of requests to conversations, and rules over the tool calls of responses.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub struct ChatRequest<'a> {
    #[serde(default, borrow)]
    pub model: &'a str,
    #[serde(default, borrow)]
    pub messages: Vec<&'a RawValue>,
    #[serde(default, borrow)]
    pub tools: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Tool {
    function: ToolFunction,
}

#[derive(Deserialize)]
struct ToolFunction {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize, Default)]
struct Parameters {
    #[serde(default)]
    required: Vec<String>,
}

#[derive(Deserialize)]
struct CallingMessage {
    tool_calls: Vec<Call>,
}

#[derive(Deserialize)]
pub struct Call {
    pub function: CallFunction,
}

#[derive(Deserialize)]
pub struct CallFunction {
    pub name: String,
    pub arguments: String,
}

impl Call {
    fn fingerprint(&self) -> u64 {
        hash(&self.function.name) ^ hash(&self.function.arguments).rotate_left(1)
    }
}

/// State of one conversation: the known messages and how often each call occurred.
struct Conversation {
    id: u64,
    known: usize,
    last: u64,
    calls: HashMap<u64, u32>,
}

/// Conversations by the hash of their first two messages; the table drops all of them at its limit.
#[derive(Default)]
pub struct Conversations {
    table: HashMap<u64, Conversation>,
    next_id: u64,
    tools: HashMap<u64, Vec<(String, Vec<String>)>>,
}

const MAX_CONVERSATIONS: usize = 20_000;
const MAX_REPEATS: u32 = 3;

/// Position of a request in its conversation.
pub struct Position {
    pub conversation: u64,
    pub key: u64,
    /// Index of the first message that no earlier request contained.
    pub first_new: usize,
}

fn hash(text: &str) -> u64 {
    let mut hasher = std::collections::hash_map::DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Conversations {
    /// Return the conversation that a request continues; begin one if there is none.
    pub fn locate(&mut self, messages: &[&RawValue]) -> Position {
        if self.table.len() > MAX_CONVERSATIONS {
            self.table.clear();
        }
        let opening = messages.iter().take(2).map(|one| hash(one.get()));
        let key = opening.fold(0u64, |sum, one| sum.rotate_left(7) ^ one);
        let next_id = self.next_id;
        let state = self.table.entry(key).or_insert_with(|| Conversation {
            id: next_id,
            known: 0,
            last: 0,
            calls: HashMap::new(),
        });
        let continues =
            state.known <= messages.len() && (state.known == 0 || hash(messages[state.known - 1].get()) == state.last);
        if state.known == 0 || !continues {
            self.next_id += 1;
            *state = Conversation { id: next_id, known: 0, last: 0, calls: HashMap::new() };
        }
        let first_new = state.known;
        for message in &messages[first_new..] {
            if message.get().contains("\"tool_calls\"") {
                let parsed = serde_json::from_str::<CallingMessage>(message.get());
                for call in parsed.map_or_else(|_| Vec::new(), |one| one.tool_calls) {
                    *state.calls.entry(call.fingerprint()).or_insert(0) += 1;
                }
            }
        }
        state.known = messages.len();
        state.last = messages.last().map_or(0, |one| hash(one.get()));
        Position { conversation: state.id, key, first_new }
    }

    /// Return the reason to refuse the tool calls of a response; None if every rule accepts them.
    pub fn find_fault(&mut self, key: u64, tools: &str, calls: &[Call]) -> Option<&'static str> {
        let offered = self.tools.entry(hash(tools)).or_insert_with(|| {
            let parsed: Vec<Tool> = serde_json::from_str(tools).unwrap_or_default();
            parsed.into_iter().map(|one| (one.function.name, one.function.parameters.required)).collect()
        });
        for call in calls {
            let Some((_, required)) = offered.iter().find(|(name, _)| *name == call.function.name) else {
                return Some("unknown tool");
            };
            let arguments: Result<HashMap<&str, &RawValue>, _> = serde_json::from_str(&call.function.arguments);
            match arguments {
                Err(_) => return Some("arguments are not a JSON object"),
                Ok(given) if required.iter().any(|name| !given.contains_key(name.as_str())) => {
                    return Some("a required argument is missing");
                }
                Ok(_) => {}
            }
            let repeats = self.table.get(&key).and_then(|state| state.calls.get(&call.fingerprint()));
            if repeats.is_some_and(|count| *count >= MAX_REPEATS) {
                return Some("the same call is repeated");
            }
        }
        None
    }
}
