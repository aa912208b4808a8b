package ucx

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/transfer"
)

func TestOnlyTheContentOfAGoodEnvelopeReachesUCX(t *testing.T) {
	v := version{1, 19, 0}
	good := seal(contentAddress, v, []byte("what UCX made"))
	if content, err := v.unsealed(contentAddress, good); err != nil || string(content) != "what UCX made" {
		t.Fatalf("%q, %v", content, err)
	}
	changed := bytes.Clone(good)
	changed[len(changed)-1]++
	for name, c := range map[string]struct {
		kind     contentKind
		envelope []byte
		want     error
	}{
		"nothing":          {contentAddress, nil, ErrNoConnection},
		"500 bytes of 255": {contentAddress, bytes.Repeat([]byte{0xff}, 500), ErrNoConnection},
		"a bare address":   {contentAddress, []byte("what UCX made"), ErrNoConnection},
		"cut":              {contentAddress, good[:len(good)-1], ErrNoConnection},
		"longer":           {contentAddress, append(bytes.Clone(good), 0), ErrNoConnection},
		"changed":          {contentAddress, changed, ErrNoConnection},
		"empty":            {contentAddress, seal(contentAddress, v, nil), ErrNoConnection},
		"a key":            {contentAddress, seal(contentKey, v, []byte("key")), ErrNoConnection},
		"an address":       {contentKey, good, ErrNoConnection},
		"another version":  {contentAddress, seal(contentAddress, version{1, 15, 0}, []byte("what UCX made")), ErrVersion},
	} {
		if content, err := v.unsealed(c.kind, c.envelope); !errors.Is(err, c.want) || content != nil && !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
}

// TestRefusedRequestsNeedNoLibrary: a malformed request is refused before the UCX library is used.
func TestRefusedRequestsNeedNoLibrary(t *testing.T) {
	c := Config{Library: "/nonexistent/libucp.so.0", Source: nobody{}}
	for name, e := range map[string]*workerv1.Endpoint{
		"no endpoint": nil,
		"no token":    {Version: "1.19.0", Address: seal(contentAddress, version{1, 19, 0}, []byte("x"))},
		"no address":  {Version: "1.19.0", Token: 5},
		"junk":        {Version: "1.19.0", Address: bytes.Repeat([]byte{0xff}, 500), Token: 5},
	} {
		if err := c.Acceptable(e); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Config{}).Acceptable(nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("without a source: %v", err)
	}
}

// nobody is a source without objects.
type nobody struct{ transfer.Source }

func FuzzEnvelope(f *testing.F) {
	v := version{1, 19, 0}
	f.Add(seal(contentAddress, v, []byte("what UCX made")))
	f.Add(seal(contentKey, v, bytes.Repeat([]byte{7}, 300)))
	f.Add([]byte(envelopeMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []contentKind{contentAddress, contentKey} {
			content, theirs, err := unseal(kind, b)
			if err != nil {
				continue
			}
			if len(content) == 0 || !bytes.Equal(sealBy(sender(b), kind, theirs, content), b) {
				t.Errorf("%d bytes of %d were taken for %s of %s", len(content), len(b), kind, theirs)
			}
		}
	})
}
