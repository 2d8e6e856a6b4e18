package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/health"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
)

// Argo CD gives a script one second.
const scriptTime = time.Second

// script is a health check as Argo CD's configuration has it.
type script string

// GetResourceHealth runs the script with what Argo CD gives it: the object as `obj`, and the
// libraries package, base and table. (Argo CD has also os.time and os.date; health of ours may
// not depend on the time.)
func (text script) GetResourceHealth(object *unstructured.Unstructured) (*health.HealthStatus, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	} {
		call := lua.P{Fn: state.NewFunction(open), Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", toLua(state, object.Object))
	if err := state.DoString(string(text)); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("the script returns %s instead of a table", returned.Type())
	}
	encoded, err := luajson.Encode(returned)
	if err != nil {
		return nil, err
	}
	found := &health.HealthStatus{}
	if err := json.Unmarshal(encoded, found); err != nil {
		return nil, err
	}
	switch found.Status {
	case health.HealthStatusUnknown, health.HealthStatusProgressing, health.HealthStatusSuspended,
		health.HealthStatusHealthy, health.HealthStatusDegraded, health.HealthStatusMissing:
		return found, nil
	}
	return nil, fmt.Errorf("the script returns the status %q, which there is not", found.Status)
}

// toLua is a JSON value as scripts see it; numbers arrive as int64 or float64.
func toLua(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case string:
		return lua.LString(known)
	case int64:
		return lua.LNumber(known)
	case float64:
		return lua.LNumber(known)
	case []any:
		list := state.CreateTable(len(known), 0)
		for _, item := range known {
			list.Append(toLua(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for key, item := range known {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}

// argoHealth is what Argo CD shows of an object; without a script, what it knows by itself, which
// is nothing ("") of kinds that it does not know.
func argoHealth(object *unstructured.Unstructured, text string) (answer, error) {
	var override health.HealthOverride
	if text != "" {
		override = script(text)
	}
	found, err := health.GetResourceHealth(object, override)
	if err != nil {
		return answer{}, err
	}
	if found == nil {
		return answer{}, nil
	}
	return answer{Status: string(found.Status), Message: found.Message}, nil
}

// argoDiff is whether Argo CD takes a live object for what its manifest in Git says; the message
// is the live object and what applying the manifest would make of it, where they differ.
func argoDiff(live, manifest *unstructured.Unstructured) (answer, error) {
	if manifest == nil {
		return answer{}, errors.New("there is no manifest")
	}
	found, err := diff.Diff(manifest, live)
	if err != nil {
		return answer{}, err
	}
	if !found.Modified {
		return answer{Status: "Synced"}, nil
	}
	message := string(found.NormalizedLive) + "\n" + string(found.PredictedLive)
	return answer{Status: "OutOfSync", Message: message}, nil
}
