//! Collector: rows of runs and steps in SQLite, with secrets redacted, in one transaction for each batch.

use std::borrow::Cow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use regex::{Regex, RegexSet};
use rusqlite::{params, Connection};
use serde::{Deserialize, Serialize};

/// One request and its response.
pub struct Exchange {
    pub conversation: u64,
    pub number: u64,
    pub first_new: usize,
    /// New messages of the request, as JSON.
    pub messages: Vec<String>,
    pub response: Vec<u8>,
    pub stream: bool,
    pub model: String,
    pub begin_s: f64,
    pub end_s: f64,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(default, borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: Message<'a>,
}

#[derive(Deserialize, Default, Clone, Copy)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

#[derive(Serialize)]
struct StepRow<'a> {
    index: usize,
    role: &'a str,
    text: &'a str,
    tool_calls: Option<&'a serde_json::Value>,
    begin_s: f64,
    end_s: f64,
    prompt_tokens: u64,
    completion_tokens: u64,
    suspicious: bool,
}

const SECRETS: [&str; 9] = [
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{36}\b",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"(?i)\bbearer [a-z0-9._~+/-]{20,}",
    r#"(?i)(password|api_key|secret)["']?\s*[:=]\s*["']?[^\s"',]{6,}"#,
    r"\b[a-z]{3,10}://[^/\s:@]+:[^@\s/]+@",
];

const SUSPICIONS: [&str; 6] = [
    r"(?i)\b(error|exception|traceback|failed|failure)\b",
    r"(?i)\b(timed out|timeout|not found|denied|refused|forbidden)\b",
    r"(?i)\b(i (cannot|can't|am unable)|unfortunately)\b",
    r"(?i)\b(exit (code|status) [1-9])",
    r"(?i)\b(invalid|missing|unknown|unexpected)\b",
    r"(?i)\b(successfully|i have (booked|sent|deleted|created|updated))\b",
];

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, task TEXT, model TEXT, begin_s REAL, end_s REAL, document TEXT);
CREATE TABLE IF NOT EXISTS steps (run INTEGER, step INTEGER, role TEXT, document TEXT, PRIMARY KEY (run, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS summaries (run INTEGER PRIMARY KEY, steps INTEGER, tokens INTEGER, suspicious INTEGER, end_s REAL);
CREATE INDEX IF NOT EXISTS runs_by_begin ON runs (begin_s);
CREATE INDEX IF NOT EXISTS summaries_by_end ON summaries (end_s);
";

pub struct Collector {
    store: Connection,
    secrets: RegexSet,
    secret: Vec<Regex>,
    suspicions: RegexSet,
}

const BATCH: usize = 250;
const GATHERING: Duration = Duration::from_millis(20);

impl Collector {
    pub fn open(path: &str) -> rusqlite::Result<Self> {
        let store = Connection::open(path)?;
        store.pragma_update(None, "journal_mode", "WAL")?;
        store.pragma_update(None, "synchronous", "NORMAL")?;
        store.execute_batch(TABLES)?;
        let set = |patterns: &[&str]| RegexSet::new(patterns).expect("patterns are constant");
        Ok(Self {
            store,
            secrets: set(&SECRETS),
            secret: SECRETS.iter().map(|one| Regex::new(one).expect("patterns are constant")).collect(),
            suspicions: set(&SUSPICIONS),
        })
    }

    /// Write exchanges until every sender has ended.
    pub fn run(mut self, exchanges: &Receiver<Exchange>) -> rusqlite::Result<()> {
        loop {
            let mut batch = match exchanges.recv_timeout(Duration::from_secs(3600)) {
                Ok(one) => vec![one],
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            Self::drain(exchanges, &mut batch);
            if batch.len() < BATCH {
                std::thread::sleep(GATHERING);
                Self::drain(exchanges, &mut batch);
            }
            self.write(&batch)?;
        }
    }

    fn drain(exchanges: &Receiver<Exchange>, batch: &mut Vec<Exchange>) {
        batch.extend(exchanges.try_iter().take(BATCH.saturating_sub(batch.len())));
    }

    fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut clean = Cow::Borrowed(text);
        for at in self.secrets.matches(text).iter() {
            clean = Cow::Owned(self.secret[at].replace_all(&clean, "[redacted]").into_owned());
        }
        clean
    }

    fn write(&mut self, batch: &[Exchange]) -> rusqlite::Result<()> {
        self.store.execute_batch("BEGIN IMMEDIATE")?;
        for one in batch {
            self.write_exchange(one)?;
        }
        self.store.execute_batch("COMMIT")
    }

    fn write_exchange(&self, one: &Exchange) -> rusqlite::Result<()> {
        let run = one.number as i64;
        let text = String::from_utf8_lossy(&one.response);
        let answer = self.redact(&text);
        let mut steps = self.store.prepare_cached("INSERT OR REPLACE INTO steps VALUES (?1, ?2, ?3, ?4)")?;
        let (mut count, mut suspicious, mut task, mut used) = (one.first_new, false, String::new(), Usage::default());
        let mut put = |message: &Message, index: usize, usage: Usage| -> rusqlite::Result<bool> {
            let text = message.content.as_deref().unwrap_or("");
            let flagged = self.suspicions.is_match(text);
            let row = StepRow {
                index,
                role: &message.role,
                text,
                tool_calls: message.tool_calls.as_ref(),
                begin_s: one.begin_s,
                end_s: one.end_s,
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                suspicious: flagged,
            };
            let document = serde_json::to_string(&row).expect("a row has string keys");
            steps.execute(params![run, index as i64, message.role, document])?;
            Ok(flagged)
        };
        for raw in &one.messages {
            let clean = self.redact(raw);
            if let Ok(message) = serde_json::from_str::<Message>(&clean) {
                if message.role == "user" {
                    task = message.content.as_deref().unwrap_or("").to_owned();
                }
                suspicious |= put(&message, count, Usage::default())?;
                count += 1;
            }
        }
        if !one.stream {
            if let Ok(completion) = serde_json::from_str::<Completion>(&answer) {
                used = completion.usage.unwrap_or_default();
                for choice in &completion.choices {
                    suspicious |= put(&choice.message, count, used)?;
                    count += 1;
                }
            }
        }
        let document =
            serde_json::json!({"conversation": one.conversation, "source": "proxy", "steps": count, "task": task});
        self.store.prepare_cached("INSERT OR REPLACE INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
            run,
            task,
            one.model,
            one.begin_s,
            one.end_s,
            document.to_string()
        ])?;
        let tokens = (used.prompt_tokens + used.completion_tokens) as i64;
        self.store.prepare_cached("INSERT OR REPLACE INTO summaries VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
            run,
            count as i64,
            tokens,
            suspicious,
            one.end_s
        ])?;
        Ok(())
    }
}
