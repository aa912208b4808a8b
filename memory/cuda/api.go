package cuda

// copyKind has the values of the enum in shim.h.
type copyKind int32

const (
	hostToDevice copyKind = iota
	deviceToHost
	deviceToDevice
)

// eventKind has the values of the enum in shim.h.
type eventKind int32

const (
	blockingEvent eventKind = iota
	polledEvent
)

// result is a CUresult, as a call of the driver returned it. 0 is success.
type result int32

const (
	success            result = 0
	invalidValue       result = 1
	outOfMemory        result = 2
	deinitialized      result = 4
	eccUncorrectable   result = 214
	peerUnsupported    result = 217
	nvlinkError        result = 220
	contained          result = 226
	invalidHandle      result = 400
	notReady           result = 600
	illegalAddress     result = 700
	launchTimeout      result = 702
	peerEnabled        result = 704
	peerNotEnabled     result = 705
	contextDestroyed   result = 709
	deviceAssert       result = 710
	tooManyPeers       result = 711
	stackError         result = 714
	illegalInstruction result = 715
	misalignedAddress  result = 716
	invalidSpace       result = 717
	invalidPC          result = 718
	launchFailed       result = 719
	tensorLeak         result = 721
	systemNotReady     result = 802
	mpsConnection      result = 805
	mpsRPC             result = 806
	mpsClientEnded     result = 810
)

// api is the driver, as the shim offers it. Contexts, streams, events and pointers are numbers; 0
// means none. Every method may be called from any goroutine.
type api interface {
	errorName(code result) string
	errorText(code result) string
	initialize() (version, count int, r result)
	describe(ordinal int) (Info, result)
	canAccess(ordinal, peer int) (bool, result)
	retain(ordinal int) (context uint64, r result)
	release(ordinal int) result
	makeCurrent(context uint64) result
	memory(context uint64) (free, total uint64, r result)

	alloc(context, bytes uint64, throwaways int) (pointer uint64, r result)
	free(context, pointer uint64) result
	bufferID(context, pointer uint64) (uint64, result)
	ipcExport(context, pointer uint64) (Handle, result)
	ipcOpen(context uint64, h Handle) (pointer uint64, r result)
	ipcClose(context, pointer uint64) result

	streamCreate(context uint64, urgent bool) (uint64, result)
	streamDestroy(context, stream uint64) result
	streamSync(context, stream uint64) result
	eventCreate(context uint64, kind eventKind) (uint64, result)
	eventDestroy(context, event uint64) result
	eventRecord(context, event, stream uint64) result
	eventQuery(context, event uint64) result
	// eventAwait polls the event for spin nanoseconds, at least once.
	eventAwait(context, event uint64, spin int64) result
	eventSync(context, event uint64) result

	copyBatch(context, stream uint64, copies []Copy, event uint64) (submitted int, r result)
	flushWrites(context uint64) result
	memset(context, stream, pointer uint64, value byte, bytes uint64) result
	read(context, stream uint64, to []byte, from uint64) result
	write(context, stream, to uint64, from []byte) result
	register(context uint64, memory []byte, readOnly bool) result
	unregister(context uint64, memory []byte) result
	// hostPointer returns the address at which kernels find registered memory.
	hostPointer(context uint64, memory []byte) (uint64, result)

	moduleLoad(context uint64, image []byte) (uint64, result)
	moduleUnload(context, module uint64) result
	moduleFunction(context, module uint64, name string) (uint64, result)
	functionShared(context, function uint64, bytes int) result
	launchBatch(context, stream uint64, copies []Copy, launches []rawLaunch, parameters []byte, event uint64) (submitted int, r result)
}
