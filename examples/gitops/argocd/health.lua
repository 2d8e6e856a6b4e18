-- Health of all kinds of Tandem (group tandem.dev) for Argo CD. It uses only generations and
-- conditions: phases are for display, and later versions may have more of them.
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
  local current = succeeded.type and succeeded or ready.type and ready or reconciling
  local text = current.reason or ""
  if current.message and current.message ~= "" then
    text = text .. ": " .. current.message
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
  -- Only operations have the condition Succeeded, and only they support retries.
  local retry = annotations["tandem.dev/retry"]
  if succeeded.type and retry and retry ~= "" and retry ~= status.observedRetry then
    return { status = "Progressing", message = "It is to be tried again" }
  end
  return is("Degraded")
end
if ready.status == "True" then
  return is("Healthy")
end
-- Without Ready: as its owner wants it.
if not ready.type and reconciling.status == "False" then
  return is("Suspended")
end
return is("Progressing")
