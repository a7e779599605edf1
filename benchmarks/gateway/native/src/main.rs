//! Prototype of a native core of the proxy, for the benchmark beside it: one thread serves HTTP, one captures.
//!
//! Arguments: port, port of the model endpoint, path of the store, SHA-256 of the key in hex.
//! It has the hot path alone: no configuration, retries, breakers, health checks, metrics page or diagnosis.

mod capture;
mod conversation;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::time::{SystemTime, UNIX_EPOCH};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use capture::{Collector, Exchange};
use conversation::{Call, ChatRequest, Conversations};

const LISTENER: Token = Token(0);
const MAX_HEADERS: usize = 64;
/// Small, and the worker waits for room: so the collector's whole work falls into the measured time.
const QUEUE: usize = 1000;

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Answer,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    tool_calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<ChunkChoice>,
}

#[derive(Deserialize)]
struct ChunkChoice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    tool_calls: Vec<CallPart>,
}

#[derive(Deserialize)]
struct CallPart {
    index: usize,
    function: FunctionPart,
}

#[derive(Deserialize)]
struct FunctionPart {
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

/// Framing of the response that the model endpoint is sending.
enum Framing {
    Length(usize),
    Chunked,
}

struct Exchanging {
    key: u64,
    tools: Option<String>,
    record: Exchange,
    framing: Option<Framing>,
    /// Bytes of the response from `from` on are held back.
    held_from: Option<usize>,
    response: Vec<u8>,
    head_size: usize,
    sent: usize,
}

/// A client's connection and the connection to the model endpoint that serves it alone.
struct Connection {
    client: TcpStream,
    upstream: Option<TcpStream>,
    input: Vec<u8>,
    to_client: Vec<u8>,
    to_upstream: Vec<u8>,
    current: Option<Exchanging>,
}

struct Worker {
    upstream: SocketAddr,
    key_digest: Vec<u8>,
    conversations: Conversations,
    captured: SyncSender<Exchange>,
    number: u64,
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |one| one.as_secs_f64())
}

/// Read all that a socket has; return false if the peer closed it.
fn read_all(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0u8; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(size) => {
                into.extend_from_slice(&buffer[..size]);
                if size < buffer.len() {
                    return Ok(true);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Write as much as a socket takes; what remains is written when it is writable again.
fn write_some(stream: &mut TcpStream, data: &mut Vec<u8>) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match stream.write(&data[done..]) {
            Ok(size) => done += size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.drain(..done);
    Ok(())
}

fn refuse(status: &str, reason: &str) -> Vec<u8> {
    let body = format!("{{\"error\":{{\"message\":\"{reason}\"}}}}");
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Return the position after the last chunk of a chunked body; None if it has not arrived.
fn find_end(body: &[u8]) -> Option<usize> {
    body.ends_with(b"\r\n0\r\n\r\n").then_some(body.len())
}

/// Join the parts of the tool calls in a stream of server-sent events.
fn join_calls(events: &[u8]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for line in events.split(|byte| *byte == b'\n') {
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else { continue };
        for part in chunk.choices.into_iter().flat_map(|one| one.delta.tool_calls) {
            while calls.len() <= part.index {
                calls.push(Call {
                    function: conversation::CallFunction { name: String::new(), arguments: String::new() },
                });
            }
            calls[part.index].function.name.push_str(&part.function.name);
            calls[part.index].function.arguments.push_str(&part.function.arguments);
        }
    }
    calls
}

impl Worker {
    /// Begin to forward the next request of a client, if it has arrived whole.
    fn take_request(&mut self, connection: &mut Connection) -> bool {
        if connection.current.is_some() {
            return true;
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let head_size = match request.parse(&connection.input) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) => return true,
            Err(_) => return false,
        };
        let (mut length, mut authorized) = (0, false);
        for header in request.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                length = std::str::from_utf8(header.value).ok().and_then(|one| one.parse().ok()).unwrap_or(0);
            } else if header.name.eq_ignore_ascii_case("authorization") {
                let key = header.value.strip_prefix(b"Bearer ").unwrap_or(b"");
                authorized = Sha256::digest(key)[..] == self.key_digest[..];
            }
        }
        let (method, path) = (request.method.unwrap_or("GET").to_owned(), request.path.unwrap_or("/").to_owned());
        if connection.input.len() < head_size + length {
            return true;
        }
        if !authorized {
            connection.to_client.extend(refuse("401 Unauthorized", "The key is not valid."));
            connection.input.drain(..head_size + length);
            return true;
        }
        let body = &connection.input[head_size..head_size + length];
        let Ok(chat) = serde_json::from_slice::<ChatRequest>(body) else {
            connection.to_client.extend(refuse("400 Bad Request", "The body is not valid JSON."));
            connection.input.drain(..head_size + length);
            return true;
        };
        let place = self.conversations.locate(&chat.messages);
        self.number += 1;
        let record = Exchange {
            conversation: place.conversation,
            number: self.number,
            first_new: place.first_new,
            messages: chat.messages[place.first_new..].iter().map(|one| one.get().to_owned()).collect(),
            response: Vec::new(),
            stream: false,
            model: chat.model.to_owned(),
            begin_s: now_s(),
            end_s: 0.0,
        };
        connection.current = Some(Exchanging {
            key: place.key,
            tools: chat.tools.map(|one| one.get().to_owned()),
            record,
            framing: None,
            held_from: None,
            response: Vec::new(),
            head_size: 0,
            sent: 0,
        });
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n",
            self.upstream
        );
        connection.to_upstream.extend_from_slice(head.as_bytes());
        connection.to_upstream.extend_from_slice(body);
        connection.input.drain(..head_size + length);
        true
    }

    /// Forward what arrived of a response; return false if it is not valid.
    fn forward(&mut self, connection: &mut Connection) -> bool {
        let Some(current) = connection.current.as_mut() else { return false };
        if current.framing.is_none() {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(&current.response) {
                Ok(httparse::Status::Complete(size)) => current.head_size = size,
                Ok(httparse::Status::Partial) => return true,
                Err(_) => return false,
            }
            let mut framing = Framing::Chunked;
            for header in response.headers.iter() {
                if header.name.eq_ignore_ascii_case("content-length") {
                    let text = std::str::from_utf8(header.value).unwrap_or("0");
                    framing = Framing::Length(text.parse().unwrap_or(0));
                }
            }
            current.record.stream = matches!(framing, Framing::Chunked);
            current.framing = Some(framing);
        }
        let body = &current.response[current.head_size..];
        let end = match current.framing {
            Some(Framing::Length(size)) => (body.len() >= size).then_some(size),
            _ => find_end(body),
        };
        let judged = current.tools.is_some();
        if current.record.stream && judged && current.held_from.is_none() {
            let from = current.sent.saturating_sub(16);
            let found = current.response[from..].windows(12).position(|one| one == b"\"tool_calls\"");
            // The chunk with the first part of a call is held whole: its size line precedes "data: ".
            current.held_from = found.map(|at| current.sent.min(from + at));
        }
        let Some(end) = end else {
            if current.record.stream && current.held_from.is_none() {
                connection.to_client.extend_from_slice(&current.response[current.sent..]);
                current.sent = current.response.len();
            }
            return true;
        };
        let Some(mut done) = connection.current.take() else { return false };
        let body = &done.response[done.head_size..done.head_size + end];
        let fault = match &done.tools {
            None => None,
            Some(tools) => {
                let calls = if done.record.stream {
                    if done.held_from.is_some() {
                        join_calls(body)
                    } else {
                        Vec::new()
                    }
                } else {
                    let parsed = serde_json::from_slice::<Completion>(body);
                    parsed.map_or_else(
                        |_| Vec::new(),
                        |one| one.choices.into_iter().flat_map(|one| one.message.tool_calls).collect(),
                    )
                };
                self.conversations.find_fault(done.key, tools, &calls)
            }
        };
        match fault {
            Some(reason) if done.sent == 0 => connection.to_client.extend(refuse("502 Bad Gateway", reason)),
            Some(_) => connection.to_client.extend_from_slice(b"0\r\n\r\n"),
            None => connection.to_client.extend_from_slice(&done.response[done.sent..done.head_size + end]),
        }
        done.record.response = body.to_vec();
        done.record.end_s = now_s();
        self.captured.send(done.record).is_ok()
    }

    /// Serve one event of a connection; return false to close it.
    fn serve(
        &mut self,
        connection: &mut Connection,
        of_client: bool,
        registry: &Registry,
        slot: usize,
    ) -> io::Result<bool> {
        if of_client {
            if !read_all(&mut connection.client, &mut connection.input)? {
                return Ok(false);
            }
        } else if let (Some(upstream), Some(current)) = (connection.upstream.as_mut(), connection.current.as_mut()) {
            let before = current.response.len();
            let open = read_all(upstream, &mut current.response)?;
            let arrived = current.response.len() > before;
            if arrived && !self.forward(connection) {
                return Ok(false);
            }
            if !open {
                connection.upstream = None;
            }
        }
        if !self.take_request(connection) {
            return Ok(false);
        }
        if !connection.to_upstream.is_empty() {
            if connection.upstream.is_none() {
                let mut stream = TcpStream::connect(self.upstream)?;
                stream.set_nodelay(true)?;
                registry.register(&mut stream, Token(2 * slot + 2), Interest::READABLE | Interest::WRITABLE)?;
                connection.upstream = Some(stream);
            }
            if let Some(upstream) = connection.upstream.as_mut() {
                write_some(upstream, &mut connection.to_upstream)?;
            }
        }
        if !connection.to_client.is_empty() {
            write_some(&mut connection.client, &mut connection.to_client)?;
        }
        Ok(true)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, port, backend, store, digest] = &arguments[..] else {
        return Err("usage: agentguard-native-prototype PORT BACKEND_PORT STORE KEY_SHA256".into());
    };
    let key_digest: Result<Vec<u8>, _> =
        (0..digest.len()).step_by(2).map(|at| u8::from_str_radix(&digest[at..at + 2], 16)).collect();
    let (captured, exchanges) = sync_channel(QUEUE);
    let collector = Collector::open(store)?;
    std::thread::spawn(move || {
        if let Err(error) = collector.run(&exchanges) {
            eprintln!("capture ended: {error}");
        }
    });
    let mut worker = Worker {
        upstream: format!("127.0.0.1:{backend}").parse()?,
        key_digest: key_digest?,
        conversations: Conversations::default(),
        captured,
        number: 0,
    };
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(format!("127.0.0.1:{port}").parse()?)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in events.iter() {
            if event.token() == LISTENER {
                while let Ok((mut client, _)) = listener.accept() {
                    client.set_nodelay(true)?;
                    let slot = connections.iter().position(Option::is_none).unwrap_or(connections.len());
                    poll.registry().register(
                        &mut client,
                        Token(2 * slot + 1),
                        Interest::READABLE | Interest::WRITABLE,
                    )?;
                    let made = Connection {
                        client,
                        upstream: None,
                        input: Vec::new(),
                        to_client: Vec::new(),
                        to_upstream: Vec::new(),
                        current: None,
                    };
                    if slot == connections.len() {
                        connections.push(Some(made));
                    } else {
                        connections[slot] = Some(made);
                    }
                }
                continue;
            }
            let slot = (event.token().0 - 1) / 2;
            let of_client = event.token().0 % 2 == 1;
            if let Some(Some(connection)) = connections.get_mut(slot) {
                let open = worker.serve(connection, of_client, poll.registry(), slot);
                if !open.unwrap_or(false) {
                    connections[slot] = None;
                }
            }
        }
    }
}
