-- Health of all kinds of Tandem (group tandem.dev) for Argo CD. It goes by generations and
-- conditions only: phases are words for people, and later versions may have more of them.
local status = obj.status or {}
local annotations = obj.metadata.annotations or {}

local function condition(type)
  for _, item in ipairs(status.conditions or {}) do
    if item.type == type then
      return item
    end
  end
  return {}
end

local succeeded, ready = condition("Succeeded"), condition("Ready")
local reconciling, stalled = condition("Reconciling"), condition("Stalled")

local function is(health)
  local told = succeeded.type and succeeded or ready
  local text = told.reason or ""
  if told.message and told.message ~= "" then
    text = text .. ": " .. told.message
  end
  return { status = health, message = text }
end

if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "The operator has not seen it yet" }
end
if reconciling.status == "True" then
  return is("Progressing")
end
if stalled.status == "True" then
  -- Only operations have the condition Succeeded, and only they are tried again when asked.
  local asked = annotations["tandem.dev/retry"]
  if succeeded.type and asked and asked ~= "" and asked ~= status.observedRetry then
    return { status = "Progressing", message = "It is to be tried again" }
  end
  return is("Degraded")
end
if ready.status == "True" then
  return is("Healthy")
end
if succeeded.status == "Unknown" and reconciling.status == "False" then
  return is("Suspended")
end
return is("Progressing")
