-- The requests that wrk sends: runs of an agent, each conversation growing by a turn a request, many at once.
-- Arguments: a seed (run ids differ from round to round), a key, "tools" or "plain", further headers as NAME=VALUE.

local LANES, TURNS = 256, 6
local system = string.rep("You plan journeys by train and answer in short sentences. ", 12)
local places = {"Brig", "Milan", "Genoa", "Pisa", "Rome", "Naples"}
local tool = '{"type":"function","function":{"name":"find_trains","description":"Find trains between two places.",'
  .. '"parameters":{"type":"object","properties":{"from":{"type":"string"},"to":{"type":"string"},'
  .. '"after":{"type":"string"}},"required":["from","to"]}}}'
local histories, ending, seed, count = {}, "]}", "0", 0

function init(args)
  seed = args[1]
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer " .. args[2]
  if args[3] == "tools" then ending = '],"tools":[' .. tool .. "]}" end
  for at = 4, #args do
    local name, value = args[at]:match("^([^=]+)=(.*)$")
    wrk.headers[name] = value
  end
  local history = ""
  for turn = 1, TURNS do
    histories[turn] = history
    -- What backend.py answers to the first request, and then to "Turn 1", "Turn 2" and so on.
    local said = "The next train to " .. places[turn] .. " leaves at " .. (8 + turn) .. ":1" .. turn .. " from platform "
      .. (3 + turn) .. ". You change once, and have " .. (10 + turn) .. " minutes for that. There are free seats in both "
      .. "classes, and the dining car of that train is open."
    history = history .. ',{"role":"assistant","content":"' .. said .. '"},{"role":"user","content":"And after that, '
      .. 'what is the next connection from there? Please say the time and the platform. Turn ' .. turn .. '."}'
  end
end

function request()
  local lane, turn = count % LANES, math.floor(count / LANES) % TURNS
  local run = seed .. "-" .. math.floor(count / (LANES * TURNS)) * LANES + lane
  count = count + 1
  local body = '{"model":"mock","messages":[{"role":"system","content":"' .. system
    .. '"},{"role":"user","content":"Journey ' .. run .. ': how do I get from Bern to the sea?"}'
    .. histories[turn + 1] .. ending
  return wrk.format(nil, nil, nil, body)
end
